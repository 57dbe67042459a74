"""`bench step`: what does a training step cost with the whole stack attached, compared with plain TRL?

Three processes train with the same GRPOTrainer on the same model, prompts and seed: one attached, with nats-server, the
mesh and the installed agents as under `up`; one plain; and one more plain one as the floor. Only one trains at a time.
They take turns, a block of steps each, in all six orders, so that neither a drift of the machine nor the order favours
one of them. The first steps of a block do not count. In `observe`, no knob changes and all three do the same work;
`same_tokens` shows whether they did, block by block. `--autonomy auto` lets the agents act.

`ratio` is the attached arm's wall time per optimizer step over the plain one's, and `floor` is the second plain one's
over the first's. The intervals are percentile bootstraps over rounds. `ratio_on_cpu` leaves out the training thread's
time in the run queue, because the stack runs on the same cores. Evaluation, checkpoints and several ranks are not
measured.

On a GPU, `--device cuda --dtype bf16 --model-size 0.5b` trains a Qwen2 of that size with random weights. Then
`tokens_ratio` (attached over plain, prompts and completions) shows the share of the throughput that is left.
"""

from __future__ import annotations

import asyncio
import json
import os
import tempfile
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from itertools import permutations
from multiprocessing import get_context
from multiprocessing.connection import Connection
from pathlib import Path
from statistics import fmean
from typing import Any, get_args

import click
from rich.console import Console

from oven_bench.intervals import Interval, ratio_of_blocks
from oven_bench.performance.overhead import processed_ticks
from oven_bench.performance.stack_under_test import RUN, installed, installed_swarm
from oven_bench.performance.step_arm import Block, Device, Dtype, Order, Size, work
from oven_bench.study import Report, Study
from oven_controller.stack.process_plan import Plan
from oven_core.errors import ConfigError, ProcessError
from oven_core.protocol.rules import Autonomy, Rules
from oven_runs.home.run_folder import Home

ARMS = ("trl", "ours", "floor")
THREADS = {"OMP_NUM_THREADS": "1", "OMP_WAIT_POLICY": "PASSIVE"}
SETTLE = 2
"""Steps at the start of a block that are not counted."""
DEFAULTS = {"recipe": (32, 8, 7), "tiny": (2, 2, 4), "0.5b": (8, 8, 256), "1.5b": (8, 8, 256)}
"""Model size → prompts per step, completions per prompt, tokens per completion at most."""
BY_SIZE = "by the model's size"


async def measure(
    order: Order, rounds: int, block: int, autonomy: Autonomy = "observe"
) -> dict[str, float | int | bool | str]:
    """Raises ProcessError if an arm or the stack failed, because then nothing was compared."""
    with tempfile.TemporaryDirectory() as scratch:
        folder = Home(Path(scratch)).create(RUN, "custom")
        rules = Rules(autonomy=autonomy).with_grants_for(installed())
        folder.config.write_text(json.dumps({"rules": rules.model_dump(mode="json")}))
        async with installed_swarm(folder, None) as swarm:
            environment = Plan(folder, swarm.url).environment("learner")
            sizes, blocks = await asyncio.to_thread(_train, order, environment, rounds, block)
            processed = await processed_ticks(swarm.url, swarm.credentials("admin"))
    sent = rounds * (block + SETTLE)
    if processed < sent / 2:
        raise ProcessError(
            f"the agents {', '.join(installed())} processed {processed} of {sent} ticks: too few to tell"
        )
    return figures(blocks, block) | {
        "autonomy": autonomy,
        "device": order.device,
        "dtype": order.dtype,
        "model": order.size,
        "parameters": sizes["ours"],
        "completions_per_step": order.prompts * order.group,
        "ticks_processed": processed,
        "load": round(os.getloadavg()[0], 2),
    }


def figures(blocks: Mapping[str, Sequence[Block]], steps: int) -> dict[str, float | int | bool | str]:
    """Figures of blocks with `steps` counted steps each. The i-th blocks of all arms were neighbours."""

    def ratio(arm: str, seconds: str = "wall_s") -> Interval:
        ours, plain = ([[float(getattr(block, seconds))] for block in blocks[name]] for name in (arm, "trl"))
        return ratio_of_blocks(ours, plain)

    def seconds(arm: str) -> float:
        return round(fmean(block.wall_s for block in blocks[arm]) / steps, 4)

    def pace(arm: str) -> float:
        return sum(block.tokens for block in blocks[arm]) / sum(block.wall_s for block in blocks[arm])

    intervals = {"ratio": ratio("ours"), "floor": ratio("floor")}
    intervals |= {"ratio_on_cpu": ratio("ours", "on_cpu_s"), "floor_on_cpu": ratio("floor", "on_cpu_s")}
    values: dict[str, float | int | bool | str] = {"ours_s": seconds("ours"), "trl_s": seconds("trl")}
    for name, interval in intervals.items():
        values |= interval.fields(name)
    return values | {
        "tokens_per_s_ours": round(pace("ours"), 1),
        "tokens_per_s_trl": round(pace("trl"), 1),
        "tokens_ratio": round(pace("ours") / pace("trl"), 4),
        "same_tokens": all(len({block.tokens for block in turn}) == 1 for turn in zip(*blocks.values(), strict=True)),
        "rounds": len(blocks["ours"]),
        "steps": steps * len(blocks["ours"]),
    }


def _train(
    order: Order, environment: Mapping[str, str], rounds: int, block: int
) -> tuple[dict[str, int], dict[str, list[Block]]]:
    """Number of parameters, and blocks, by arm."""
    progress = Console(stderr=True)
    blocks: dict[str, list[Block]] = {arm: [] for arm in ARMS}
    orders = list(permutations(ARMS))
    with ExitStack() as running, progress.status("starting") as line:
        pipes, sizes = {}, {}
        for arm in ARMS:
            pipes[arm] = running.enter_context(
                _arm(replace(order, environment=dict(environment) if arm == "ours" else {}))
            )
            if order.size == "recipe":  # the first fills the cache of warm policies
                sizes[arm] = _receive(arm, pipes[arm])
        sizes |= {arm: _receive(arm, pipes[arm]) for arm in ARMS if arm not in sizes}
        for number in range(rounds):
            for arm in orders[number % len(orders)]:
                line.update(f"round {number + 1} of {rounds}: {arm}")
                pipes[arm].send((SETTLE, block))
                blocks[arm].append(_receive(arm, pipes[arm]))
        for pipe in pipes.values():
            pipe.send(None)
    return sizes, blocks


def _receive(arm: str, pipe: Connection) -> Any:
    try:
        return pipe.recv()
    except EOFError:
        raise ProcessError(f"the training {arm!r} ended early; its last output is above") from None


@contextmanager
def _arm(order: Order) -> Iterator[Connection]:
    spawn = get_context("spawn")
    ours, theirs = spawn.Pipe()
    process = spawn.Process(target=work, args=(theirs, order), daemon=True)
    before = {name: os.environ.get(name) for name in THREADS}
    os.environ.update({name: value for name, value in THREADS.items() if before[name] is None})
    try:
        process.start()
    finally:
        for name, value in before.items():
            if value is None:
                del os.environ[name]
    theirs.close()
    try:
        yield ours
        process.join(60)
    finally:
        ours.close()
        if process.is_alive():
            process.terminate()
            process.join(10)


@click.option("--rounds", type=int, default=12, help="Blocks of each arm; 12 take about 4 minutes.")
@click.option("--block", type=click.IntRange(min=1), default=10, help="Counted steps per block.")
@click.option("--device", type=click.Choice(get_args(Device)), default="cpu", help="Where to train.")
@click.option("--dtype", type=click.Choice(get_args(Dtype)), default="f32", help="Type of the weights.")
@click.option(
    "--model-size",
    type=click.Choice([*DEFAULTS]),
    default="recipe",
    help="The recipe's warm policy of 0.5 M parameters (recipe), or a Qwen2 with random weights.",
)
@click.option(
    "--autonomy", type=click.Choice(get_args(Autonomy)), default="observe", help="Autonomy level of the attached arm."
)
@click.option("--prompts", type=click.IntRange(min=1), show_default=BY_SIZE, help="Prompts per step.")
@click.option("--group", type=int, show_default=BY_SIZE, help="Completions per prompt.")
@click.option("--completion", type=click.IntRange(min=1), show_default=BY_SIZE, help="Tokens per completion.")
def bench(
    rounds: int,
    block: int,
    device: Device,
    dtype: Dtype,
    model_size: Size,
    autonomy: Autonomy,
    prompts: int | None,
    group: int | None,
    completion: int | None,
) -> Report:
    if rounds < 4:
        raise ConfigError(f"--rounds {rounds}: an interval needs at least four")
    defaults = DEFAULTS[model_size]
    order = Order(
        cache=str(Home().cache / "bench-step"),
        size=model_size,
        device=device,
        dtype=dtype,
        prompts=prompts or defaults[0],
        group=group or defaults[1],
        completion=completion or defaults[2],
    )
    if order.group < 2:
        raise ConfigError(f"--group {order.group} has to be at least 2: a single completion has no advantage")
    return Report(asyncio.run(measure(order, rounds, block, autonomy)))


STUDY = Study("step", bench, "--json")
