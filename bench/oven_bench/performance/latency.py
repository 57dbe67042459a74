"""`bench latency`: how long an observation takes to become a decision, beside a bare relay through as many processes.

A measurement begins with the call of `observe` on the learner's thread and ends when that thread has the decision in
hand: so it holds the hand-over to the link (which is polled), the log, four agents that vote, the ballot that
closes with the fourth vote, its tally, and the decision in the log. Requests come 20 to 40 ms apart.

The relay passes bare messages of the same size between the same number of processes over core NATS, with the same
hand-over: nothing is logged, judged or decided. Blocks of either take turns in one run, so that both meet the same
machine; the interval of their ratio is a bootstrap over pairs of neighbouring blocks.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Annotated

from typer import Option

from oven_bench.intervals import bootstrapped, percentile
from oven_bench.performance import relay_baseline
from oven_bench.performance.stack_under_test import RUN, Learner, Swarm, swarm
from oven_bench.study import Report, Study
from oven_core.errors import ConfigError, ProcessError
from oven_learner.link.process_link import POLL_S

LOOK_S = 0.0001
"""Between two looks of the learner's thread into its inbox."""
ANSWER_S = 30.0
"""So long an answer may take before the bench gives up; no figure hangs on it."""
START_S = 20.0
WARM_UP = 20

Trip = Callable[[], float]
"""Ask once; the seconds until the decision was there."""


async def measure(scratch: Path, agents: int, blocks: int, trips: int, per_process: int = 4) -> dict[str, float]:
    """Raises ProcessError when a decision does not come, or a process dies."""
    async with swarm(scratch, agents, per_process) as made:
        admin = made.folder.server.creds / "admin.nk"
        hops = await relay_baseline.start(made.url, admin, agents, per_process, made.folder.logs)
        try:
            real, bare = await asyncio.to_thread(_alternate, made, agents, blocks, trips)
            made.check()
        finally:
            for child in hops:
                await child.end()
    return summary(real, bare) | {"agents": agents, "decisions": blocks * trips}


def _alternate(made: Swarm, agents: int, blocks: int, trips: int) -> tuple[list[list[float]], list[list[float]]]:
    learner = Learner(made)
    bare_link = relay_baseline.RelayLink(made.url, made.credentials("admin"), POLL_S)
    learner.client.start()
    pause = random.Random(1)
    real: list[list[float]] = []
    bare: list[list[float]] = []
    relayed = 0

    def decide() -> float:
        began = time.perf_counter()
        learner.observe(ask=True)
        while learner.asked not in learner.stamped.at:
            learner.client.poll()
            _look(began, f"a decision of {agents} agents in run {RUN}")
        return learner.stamped.at.pop(learner.asked) - began

    def pass_on() -> float:
        nonlocal relayed
        relayed += 1
        began = time.perf_counter()
        bare_link.send(relayed)
        while bare_link.receive() != relayed:
            _look(began, "a relayed message")
        return time.perf_counter() - began

    def block(trip: Trip, count: int) -> list[float]:
        took = []
        for _ in range(count):
            time.sleep(pause.uniform(0.02, 0.04))
            took.append(trip())
        return took

    try:
        relayed = bare_link.wait(START_S)
        block(decide, WARM_UP)
        block(pass_on, WARM_UP)
        for number in range(blocks):
            arms = [(decide, real), (pass_on, bare)]
            for trip, found in arms if number % 2 else reversed(arms):
                found.append(block(trip, trips))
    finally:
        bare_link.close()
        learner.client.close("completed")
    return real, bare


def _look(began: float, what: str) -> None:
    if time.perf_counter() > began + ANSWER_S:
        raise ProcessError(f"{what} did not come within {ANSWER_S:g} s: nothing was measured")
    time.sleep(LOOK_S)


def summary(real: Sequence[Sequence[float]], bare: Sequence[Sequence[float]]) -> dict[str, float]:
    """Of seconds by block, the two arms' in pairs: quantiles in ms, and the ratio of the medians with the 95 %
    interval of a bootstrap over the pairs."""

    def ratio(chosen: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
        ours = statistics.median([took for one, _ in chosen for took in one])
        theirs = statistics.median([took for _, other in chosen for took in other])
        return ours / theirs

    found = bootstrapped(list(zip(real, bare, strict=True)), ratio)
    return {
        "decision_p50_ms": _milliseconds(real, 50),
        "decision_p99_ms": _milliseconds(real, 99),
        "relay_p50_ms": _milliseconds(bare, 50),
        "relay_p99_ms": _milliseconds(bare, 99),
        "ratio_p50": round(found.mean, 3),
        "ratio_low": round(found.low, 3),
        "ratio_high": round(found.high, 3),
    }


def _milliseconds(blocks: Sequence[Sequence[float]], percent: int) -> float:
    return round(percentile([took for block in blocks for took in block], percent) * 1000, 3)


def bench(
    agents: Annotated[int, Option(help="Number of agents.")] = 4,
    agents_per_process: Annotated[int, Option(min=1, help="Agents of a process.")] = 4,
    blocks: Annotated[int, Option(help="Blocks of each arm, taking turns.")] = 20,
    trips: Annotated[int, Option(help="Decisions in a block.")] = 50,
) -> Report:
    if min(agents, blocks, trips) < 2:
        raise ConfigError("--agents, --blocks and --trips are 2 at least: an interval needs several of each")
    with tempfile.TemporaryDirectory() as scratch:
        found = asyncio.run(measure(Path(scratch), agents, blocks, trips, agents_per_process))
    return Report(found)


STUDY = Study(
    "latency",
    bench,
    "--json",
)
