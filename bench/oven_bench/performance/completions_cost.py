"""`bench completions`: what sampled completions cost the training thread, on and off in turns within one run.

One process trains a small transformer on one thread, some 5 ms per step, over the real link to a real server that keeps
the samples. At every step the learner observes and polls; in every other block the hook of TRL's trainers stands before
that, and hands over a group every `--every` steps, as it does in a GRPOTrainer: the trainer is a stand-in that holds
what TRL keeps of its newest generation. Blocks take turns (off, on, on, off) and begin with steps that are not
counted.

`call_*` is what those calls take of the training thread, on-CPU: `off` without the hook, `between` at steps that hand
over nothing, `sample` at those that do, `on` at all of the block's. `p99_difference_us` is p99 of `on` less that of
`off`. Text, redaction and cuts come in another thread, which may want the interpreter while the next step trains:
`step_*` is the whole step in wall time, `after` the two steps that follow a sample, and `step_slowdown` the mean step
of on-blocks over off-blocks, with the interval of a percentile bootstrap over neighbouring blocks; `step_floor_*` is
that of off-blocks over one another. `samples_kept` says how many arrived of those that were handed over.
"""

from __future__ import annotations

import asyncio
import random
import tempfile
import time
from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean
from types import SimpleNamespace
from typing import Annotated, Any

from typer import Option

from oven_bench.bench_command import Bench, Json, print_object
from oven_bench.performance.on_cpu_clock import OnCpu
from oven_bench.performance.overhead import SETTLE, WARM_UP, slowdown, training_step
from oven_bench.performance.stack_under_test import GAUGES, RUN, server_with_log
from oven_bench.statistics import seen_quantile
from oven_core.bus import streams
from oven_core.bus.connection import Bus
from oven_core.bus.stored_completions import stored_batch
from oven_core.errors import ConfigError, ProcessError
from oven_core.protocol.messages import MetricSpec
from oven_core.protocol.names import completions_stream
from oven_core.security.credentials import Credentials
from oven_learner.actuators import Actuators
from oven_learner.client.client import OvenClient
from oven_learner.completions.sampling import sampling_of
from oven_learner.link.process_link import ProcessLink

GENERATIONS = 16
"""Made before anything is measured, and given in turn: making text is not what is measured."""
PROMPTS, SIZE, FUNCTIONS = 16, 8, 3
"""Of a generation: prompts, completions of each, and reward functions."""
AFTER = 2
"""Steps after a sample in which its thread may still want the interpreter."""


@dataclass
class Arm:
    """One kind of block, or of step: µs of the calls, and of the whole step."""

    calls: list[float] = field(default_factory=list)
    steps: list[float] = field(default_factory=list)
    blocks: list[list[float]] = field(default_factory=list)


def _generations(characters: int) -> list[dict[str, Any]]:
    """As TRL keeps them: of each row the prompt, the completion, each function's reward, and the advantage."""
    rng = random.Random("completions")
    words = ["".join(rng.choices("abcdefghijklmnop", k=rng.randint(1, 9))) for _ in range(500)]

    def text(length: int) -> str:
        return " ".join(rng.choices(words, k=max(1, length // 5)))[:length]

    rows = PROMPTS * SIZE
    found = []
    for _ in range(GENERATIONS):
        prompts = [text(200) for _ in range(PROMPTS)]
        found.append(
            {
                "prompt": deque((prompt for prompt in prompts for _ in range(SIZE)), maxlen=rows),
                "completion": deque((text(characters) for _ in range(rows)), maxlen=rows),
                "rewards": {f"f{n}": deque((rng.random() for _ in range(rows)), maxlen=rows) for n in range(FUNCTIONS)},
                "advantages": deque((rng.gauss(0, 1) for _ in range(rows)), maxlen=rows),
            }
        )
    return found


def _trainer() -> Any:
    """What the hook reads of a GRPOTrainer."""
    import torch

    return SimpleNamespace(
        _logs={},
        num_generations=SIZE,
        reward_func_names=[f"f{n}" for n in range(FUNCTIONS)],
        reward_weights=torch.ones(FUNCTIONS),
        state=SimpleNamespace(global_step=0),
        model=SimpleNamespace(training=True),
        _generate_and_score_completions=lambda inputs: inputs,
    )


def _train(
    link: ProcessLink, pairs: int, block: int, every: int, characters: int, redact: Callable[[str], str] | None
) -> tuple[dict[str, Arm], int]:
    from oven_learner.hf.hooks.completion_samples import CompletionSamples
    from oven_learner.hf.hooks.step_hooks import StepEnd
    from oven_learner.ranks import Ranks

    sampling = sampling_of(None, {"every": every, "characters": 100_000}, redact)
    assert sampling is not None
    trainer, generations, step = _trainer(), _generations(characters), training_step()
    metrics = tuple(MetricSpec(name=name) for name in GAUGES)
    client = OvenClient(link, Actuators(), recipe="bench", metrics=metrics)
    generate = trainer._generate_and_score_completions
    hook = CompletionSamples(trainer, None, sampling, lambda: client)
    hook.begin(Ranks())
    client.start()
    arms = {name: Arm() for name in ("off", "on", "between", "sample", "after")}
    done = shown = 0

    def say(with_hook: bool, end: StepEnd) -> None:
        if with_hook:
            trainer._generate_and_score_completions(None)
            hook.end_step(end)
        else:
            generate(None)
        client.observe(done, GAUGES)
        client.poll()

    def train(with_hook: bool, count: int, counted: bool) -> None:
        nonlocal done, shown
        spent: list[float] = []
        since = AFTER + 1
        for _ in range(count):
            done += 1
            trainer.state.global_step = done
            trainer._logs = generations[done % GENERATIONS]
            before = sampling.number
            began = time.perf_counter()
            step()
            call = clock.us(partial(say, with_hook, StepEnd(done, False, frozenset(), {})))
            took = time.perf_counter() - began
            sampled = sampling.number > before
            shown += sampled
            spent.append(took)
            for kind in _kinds(with_hook, sampled, since) if counted else ():
                arms[kind].calls.append(call)
                arms[kind].steps.append(1e6 * took)
            since = 0 if sampled else since + 1
        if counted:
            arms["on" if with_hook else "off"].blocks.append(spent)

    with OnCpu() as clock:
        train(True, WARM_UP, False)
        for number in range(2 * pairs):
            with_hook = number % 4 in (1, 2)
            train(with_hook, SETTLE, False)
            train(with_hook, block, True)
    if not client.close("completed", timeout_s=30):
        raise ProcessError(f"{link.unsent} messages did not reach the log")
    return arms, shown


def _kinds(with_hook: bool, sampled: bool, since: int) -> list[str]:
    """The arms that a step is one of. `since`: steps since the last sample."""
    if not with_hook:
        return ["off"]
    return ["on", "sample" if sampled else "between", *(["after"] if since < AFTER else [])]


async def _measure(
    pairs: int, block: int, every: int, characters: int, redact: Callable[[str], str] | None
) -> dict[str, float | bool | int]:
    with tempfile.TemporaryDirectory() as scratch:
        async with server_with_log(Path(scratch), RUN) as (server, folder):
            admin = Credentials.load(folder.creds / "admin.nk")
            async with Bus.connect(server.url, admin) as bus:
                if why := await streams.keep_completions(bus.jetstream, RUN):
                    raise ProcessError(f"no stream of completions: {why}")
                link = ProcessLink(server.url, RUN, Credentials.load(folder.creds / "learner.nk"))
                arms, shown = await asyncio.to_thread(_train, link, pairs, block, every, characters, redact)
                newest = (await stored_batch(bus, RUN, 0, 1)).groups
                kept = (await bus.jetstream.stream_info(completions_stream(RUN))).state.last_seq
    if not newest:
        raise ProcessError("no sample arrived: nothing was compared")
    on, off = arms["on"], arms["off"]
    wall = slowdown(on.blocks, off.blocks)
    half = len(off.blocks) // 2
    floor = slowdown(off.blocks[: 2 * half : 2], off.blocks[1 : 2 * half : 2])
    found: dict[str, float | bool | int] = {}
    seen = {name: arm for name, arm in arms.items() if arm.calls}  # with --every 1 there is no step between
    for name, arm in seen.items():
        found[f"call_{name}_p50_us"] = seen_quantile(arm.calls, 0.5)
        found[f"call_{name}_p99_us"] = seen_quantile(arm.calls, 0.99)
    found["p99_difference_us"] = round(seen_quantile(on.calls, 0.99) - seen_quantile(off.calls, 0.99), 2)
    for name, arm in seen.items():
        found[f"step_{name}_mean_us"] = round(fmean(arm.steps), 1)
        found[f"step_{name}_p99_us"] = round(seen_quantile(arm.steps, 0.99), 1)
    return found | {
        "step_slowdown": round(wall.mean, 4),
        "step_slowdown_low": round(wall.low, 4),
        "step_slowdown_high": round(wall.high, 4),
        "step_floor_low": round(floor.low, 4),
        "step_floor_high": round(floor.high, 4),
        "samples": shown,
        "samples_kept": int(kept),
        "steps": len(on.steps),
        "every": every,
        "characters": characters,
        "redacted": redact is not None,
    }


def _redacted(text: str) -> str:
    """What a script may pass: digits and addresses taken out."""
    import re

    return re.sub(r"\S+@\S+|\d{4,}|\bsecret\b", "■", text)


def bench(
    pairs: Annotated[int, Option(help="Steps of each arm; half a minute in all.")] = 1600,
    block: Annotated[int, Option(min=1, help="Counted steps of a block.")] = 40,
    every: Annotated[int, Option(min=1, help="Steps between two samples.")] = 10,
    characters: Annotated[int, Option(min=1, help="Of each completion.")] = 2000,
    redact: Annotated[bool, Option("--redact", help="With a function that goes over every text.")] = False,
    as_json: Json = False,
) -> int:
    if pairs < 4 * block:
        raise ConfigError("an interval needs four pairs of blocks at least: --pairs of 4 × --block or more")
    function = _redacted if redact else None
    print_object(asyncio.run(_measure(pairs // block, block, every, characters, function)), as_json)
    return 0


BENCH = Bench(
    "completions",
    bench,
    "what sampled completions cost the training thread, on and off in turns",
    "--json",
)
