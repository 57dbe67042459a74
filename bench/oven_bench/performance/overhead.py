"""`bench overhead`: what do `observe` and `poll` cost the training thread, and the whole stack a training step?

One process trains a small transformer on one thread with the real client, by default at about 5 ms per step. Its link,
nats-server, the mesh and the installed agents run on the same cores, as under `up`. Blocks of steps alternate (off, on,
on, off). In an on-block the learner observes and polls at every step, so that the whole stack works; in an off-block it
is silent. The first steps of a block are not counted, so that the effects of the other block fade.

`step_slowdown` is the mean step of on-blocks over that of off-blocks, in wall time, including waits for a core that the
stack uses. Its interval is a percentile bootstrap over pairs of neighbouring blocks. `step_floor_low` and `_high` are
the interval of off-blocks over one another: the noise of the machine.

`step_slowdown_on_cpu` leaves out the time in the run queue, so it is closer to the cost for a trainer with its own
core: the calls, the interpreter's lock, the caches. The costs of the calls are on-CPU, too. `step_bare_ms` is the
same step before the stack starts, and `step_idle_ms` is that of off-blocks; these two were not measured side by side.

Two floors of `observe` are measured after other steps of the same run. `store` is the least work: the metrics are put
into a list of fixed length, in off-blocks. `loop` is about as long as `observe` and touches no memory, so its p99 shows
what the machine's interrupts add to a call of that length. It runs in steps that are not counted.
"""

from __future__ import annotations

import asyncio
import tempfile
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from statistics import fmean

import click

from oven_bench.intervals import observed_quantile, ratio_of_blocks
from oven_bench.performance.on_cpu_clock import OnCpu, nothing
from oven_bench.performance.stack_under_test import RUN, installed, installed_swarm
from oven_bench.study import Report, Study
from oven_core.bus.connection import Bus
from oven_core.errors import ConfigError, ProcessError
from oven_core.mesh.code_hash import mesh_code_hash
from oven_core.protocol.messages import AgentStatus, MetricSpec
from oven_core.protocol.rules import Rules
from oven_core.security.credentials import Credentials
from oven_core.security.signing import KEYS, load_keys
from oven_learner.actuators import Actuators
from oven_learner.client.oven_client import OvenClient
from oven_learner.link.process_link import ProcessLink
from oven_runs.home.run_folder import Home

WARM_UP = 200
SETTLE = 10
"""Steps at the start of a block that are not counted."""
BARE = 300
LOOP = range(600)
"""Iterations of an empty loop that take about as long as `observe`."""
WIDTH, HEADS, TOKENS = 64, 4, 32


@dataclass
class Arm:
    """Measurements of one kind of block. `blocks` has the wall seconds of its counted steps, and `on_cpu` the same
    without the time in the run queue."""

    blocks: list[list[float]] = field(default_factory=list)
    on_cpu: list[list[float]] = field(default_factory=list)
    observe_us: list[float] = field(default_factory=list)
    poll_us: list[float] = field(default_factory=list)
    store_us: list[float] = field(default_factory=list)
    loop_us: list[float] = field(default_factory=list)


async def _measure(pairs: int, block: int, per_process: int | None, step_ms: float) -> dict[str, float | bool]:
    """Raises ProcessError if the stack did no work, because then nothing was compared."""
    step = await asyncio.to_thread(training_step, step_ms)
    bare = await asyncio.to_thread(_bare, step)
    with tempfile.TemporaryDirectory() as scratch:
        folder = Home(Path(scratch)).create(RUN, "custom")
        async with installed_swarm(folder, per_process) as swarm:
            link = ProcessLink(swarm.url, RUN, swarm.credentials("learner"))
            arms, dropped = await asyncio.to_thread(
                _train, link, load_keys(folder.server.creds / KEYS), step, pairs, block
            )
            processed = await processed_ticks(swarm.url, swarm.credentials("admin"))
    sent = WARM_UP + pairs * (block + SETTLE)
    if dropped or processed < sent / 2:
        raise ProcessError(f"the agents processed {processed} of {sent} ticks, {dropped} were dropped: too few to tell")
    on, off = arms[True], arms[False]
    wall, on_cpu = ratio_of_blocks(on.blocks, off.blocks), ratio_of_blocks(on.on_cpu, off.on_cpu)
    half = len(off.blocks) // 2
    floor = ratio_of_blocks(off.blocks[: 2 * half : 2], off.blocks[1 : 2 * half : 2])
    return {
        "observe_p50_us": observed_quantile(on.observe_us, 0.5),
        "observe_p99_us": observed_quantile(on.observe_us, 0.99),
        "poll_p50_us": observed_quantile(on.poll_us, 0.5),
        "poll_p99_us": observed_quantile(on.poll_us, 0.99),
        "store_p50_us": observed_quantile(off.store_us, 0.5),
        "store_p99_us": observed_quantile(off.store_us, 0.99),
        "loop_p50_us": observed_quantile(on.loop_us + off.loop_us, 0.5),
        "loop_p99_us": observed_quantile(on.loop_us + off.loop_us, 0.99),
        **wall.fields("step_slowdown"),
        "step_floor_low": round(floor.low, 4),
        "step_floor_high": round(floor.high, 4),
        **on_cpu.fields("step_slowdown_on_cpu"),
        "step_on_ms": _mean_ms(on.blocks),
        "step_idle_ms": _mean_ms(off.blocks),
        "step_bare_ms": round(1e3 * fmean(bare), 3),
        "pairs": sum(len(steps) for steps in on.blocks),
        "blocks": len(on.blocks),
        "agents": len(installed()),
        "ticks_processed": processed,
        "on_cpu": _has_run_queue(),
    }


def training_step(least_ms: float) -> Callable[[], float]:
    """Build a step of AdamW on one transformer layer, with a random batch so large that it takes at least about
    `least_ms`. The step returns the gradient norm."""
    import torch

    torch.set_num_threads(1)
    torch.manual_seed(0)
    layer = torch.nn.TransformerEncoderLayer(WIDTH, HEADS, 4 * WIDTH, dropout=0.0, batch_first=True)
    optimizer = torch.optim.AdamW(layer.parameters(), lr=1e-3)

    def step(batch: int) -> float:
        x = torch.randn(batch, TOKENS, WIDTH)  # (B, T, WIDTH)
        loss = (layer(x) - x).square().mean()
        optimizer.zero_grad()
        loss.backward()
        norm = torch.nn.utils.clip_grad_norm_(layer.parameters(), 1.0)
        optimizer.step()
        return float(norm)

    batch = 1
    while min(_seconds(partial(step, batch)) for _ in range(20)) < least_ms / 1e3:
        batch += max(1, batch // 4)
    return partial(step, batch)


def _seconds(call: Callable[[], object]) -> float:
    start = time.perf_counter()
    call()
    return time.perf_counter() - start


def _bare(step: Callable[[], float]) -> list[float]:
    return [_seconds(step) for _ in range(BARE)]


def _train(
    link: ProcessLink, keys: Mapping[str, str], step: Callable[[], float], pairs: int, block: int
) -> tuple[dict[bool, Arm], int]:
    arms = {True: Arm(), False: Arm()}
    client = _client(link, keys)
    client.start()
    done = 0
    stored: list[dict[str, float]] = [{}] * (WARM_UP + 2 * pairs * (SETTLE + block) + 1)

    def settle(observing: bool, count: int) -> list[float]:
        """Train steps that are not counted, and return the length of a loop after each of them."""
        nonlocal done
        lengths = []
        for _ in range(count):
            done += 1
            norm = step()
            lengths.append(clock.us(_loop))
            if observing:
                client.observe(done, grpo_gauges(done, norm))
                client.poll()
        return lengths

    def train(observing: bool, arm: Arm) -> None:
        nonlocal done
        spent: list[float] = []
        on_cpu: list[float] = []
        for _ in range(block):
            done += 1
            start, waited = time.perf_counter(), clock.waited_ns()
            norm = step()
            gauges = grpo_gauges(done, norm)  # in both arms, because a trainer has them in any case
            observed = clock.us(
                partial(client.observe, done, gauges) if observing else partial(stored.__setitem__, done, gauges)
            )
            polled = clock.us(client.poll if observing else nothing)
            spent.append(time.perf_counter() - start)
            on_cpu.append(spent[-1] - (clock.waited_ns() - waited) / 1e9)
            if observing:
                arm.observe_us.append(observed)
                arm.poll_us.append(polled)
            else:
                arm.store_us.append(observed)
        arm.blocks.append(spent)
        arm.on_cpu.append(on_cpu)

    try:
        with OnCpu() as clock:
            settle(True, WARM_UP)
            for number in range(2 * pairs):
                observing = number % 4 in (1, 2)
                arms[observing].loop_us += settle(observing, SETTLE)
                train(observing, arms[observing])
    finally:
        all_sent = client.close("completed", timeout_s=30)
    if not all_sent:
        raise ProcessError(f"{link.unsent} messages did not reach the log: the stack did not keep up")
    return arms, link.dropped_count


def _loop() -> None:
    for _ in LOOP:
        pass


def _client(link: ProcessLink, keys: Mapping[str, str]) -> OvenClient:
    return OvenClient(
        link, busy_knobs(), recipe="bench", metrics=busy_metrics(), rules=Rules(autonomy="auto"),
        mesh_code=mesh_code_hash(), keys=keys,
    )  # fmt: skip


def busy_knobs() -> Actuators:
    """A knob for each agent. The knobs change nothing else, so every step does the same work."""
    values: dict[str, float] = {"optimizer.lr_scale": 1.0, "grpo.beta": 0.1}
    knobs = Actuators()
    for name in values:
        knobs.scalar(
            name,
            partial(values.__getitem__, name),
            partial(values.__setitem__, name),
            low=0.01,
            high=10,
            scale="log",
            moves_own_metric=name == "grpo.beta",
        )
    teacher = ["small"]
    knobs.choice("teacher.active", lambda: teacher[0], partial(teacher.__setitem__, 0), ("small", "large"))
    mixture = {"easy": 0.5, "hard": 0.5}
    knobs.simplex("data.mixture", lambda: mixture, mixture.update, moves_own_metric=True)
    weights = {"format": 0.5, "answer": 0.5}
    knobs.simplex("reward.weights", lambda: weights, weights.update, moves_own_metric=True)
    return knobs


def busy_metrics() -> tuple[MetricSpec, ...]:
    """The metrics of `grpo_gauges`, without which no agent could fire."""
    held_out = MetricSpec(name="eval/accuracy", better="up", held_out=True, ceiling=1.0)
    reward = MetricSpec(name="reward", better="up", ceiling=1.0)
    return (held_out, reward, *(MetricSpec(name=name) for name in grpo_gauges(1, 1.0) if name != reward.name))


def grpo_gauges(step: int, norm: float) -> dict[str, float]:
    """The 25 metrics of a GRPO run, including those that agents read."""
    wave = (step % 17) / 170
    gauges = {
        "loss": 0.5 + wave, "grad_norm": norm, "learning_rate": 1e-4, "reward": 0.5 + wave, "reward_std": 0.2,
        "kl": 0.1 + wave / 10, "entropy": 1.0 - wave, "frac_reward_zero_std": 0.1,
        "optim/grad_momentum_cos": wave - 0.05, "reward/easy": 0.7 + wave, "reward/hard": 0.3 + wave,
        "rewards/format/mean": 0.9, "rewards/answer/mean": 0.4 + wave,
        "rewards/format/std": 0.1, "rewards/answer/std": 0.4,
    }  # fmt: skip
    if step % 20 == 0:
        gauges["eval/accuracy"] = 0.5 + wave
    return gauges | {f"timing/{number}": wave / (number + 1) for number in range(25 - len(gauges))}


async def processed_ticks(url: str, credentials: Credentials) -> int:
    """The newest tick that all agents with heartbeats have processed, according to the log. Agents that cannot propose
    in this run have none."""
    newest: dict[str, int] = {}
    async with Bus.connect(url, credentials) as bus:
        async for event in bus.read(RUN, until=await bus.head(RUN)):
            if isinstance(event.body, AgentStatus) and event.body.state == "done":
                newest[event.author] = max(newest.get(event.author, 0), event.body.tick)
    return min(newest.values(), default=0)


def _has_run_queue() -> bool:
    with OnCpu() as clock:
        return clock.reads_run_queue


def _mean_ms(blocks: list[list[float]]) -> float:
    return round(1e3 * fmean(step for block in blocks for step in block), 3)


@click.option("--pairs", type=int, default=2400, help="Steps of each arm: a minute in all.")
@click.option("--block", type=click.IntRange(min=1), default=40, help="Counted steps of a block.")
@click.option(
    "--agents-per-process",
    type=click.IntRange(min=1),
    show_default="all, as `up` starts them",
    help="Installed agents per process.",
)
@click.option("--step-ms", type=click.FloatRange(min=1, max=200), default=5.0, help="Least time of a step, in ms.")
def bench(pairs: int, block: int, agents_per_process: int | None, step_ms: float) -> Report:
    if pairs < 4 * block:
        raise ConfigError(
            f"--pairs {pairs} is below 4 × --block ({4 * block}): an interval needs at least four pairs of blocks"
        )
    return Report(asyncio.run(_measure(pairs // block, block, agents_per_process, step_ms)))


STUDY = Study("overhead", bench, "--json")
