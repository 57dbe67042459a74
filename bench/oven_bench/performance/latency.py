"""`bench latency`: how long does an observation take to become a decision?

A measurement starts with the call of `observe` on the learner's thread, and ends when that thread receives the
decision. It includes the handover to the link, the log, four agents that vote, the ballot that closes with the fourth
vote, its tally, and the decision in the log. With `--reviews`, three agents vote only once they have read the ballot
that the first one opened. Requests come 20 to 40 ms apart.

The baseline is a relay that passes bare messages of the same size between as many processes over core NATS. Nothing is
logged, judged or decided. Its handover is a poll every 5 ms, so 2.5 ms of its time are waiting. Blocks of both
alternate, so that both meet the same machine. The interval of their ratio is a bootstrap over pairs of neighbouring
blocks.
"""

from __future__ import annotations

import asyncio
import random
import statistics
import tempfile
import time
from collections.abc import Callable, Sequence
from pathlib import Path

import click

from oven_bench.intervals import bootstrapped, percentile
from oven_bench.performance import relay_baseline
from oven_bench.performance.stack_under_test import RUN, Learner, Swarm, swarm
from oven_bench.study import Report, Study
from oven_core.errors import ConfigError, ProcessError

RELAY_POLL_S = 0.005
"""Time between two looks of the baseline's link for messages."""
LOOK_S = 0.0001
"""Time between two polls of the learner's thread."""
ANSWER_S = 30.0
"""Time until the bench gives up waiting for a decision."""
START_S = 20.0
WARM_UP = 20

Trip = Callable[[], float]
"""Make one request, and return the seconds until its decision arrived."""


async def measure(
    scratch: Path, agents: int, blocks: int, trips: int, per_process: int = 4, *, reviews: bool = False
) -> dict[str, float]:
    """Raises ProcessError if a decision does not come, or a process dies."""
    async with swarm(scratch, agents, per_process, reviews=reviews) as started:
        admin = started.folder.server.creds / "admin.nk"
        hops = await relay_baseline.start(started.url, admin, agents, per_process, started.folder.logs)
        try:
            real, bare = await asyncio.to_thread(_alternate, started, agents, blocks, trips)
            started.check()
        finally:
            for child in hops:
                await child.end()
    return summary(real, bare) | {"agents": agents, "decisions": blocks * trips}


def _alternate(started: Swarm, agents: int, blocks: int, trips: int) -> tuple[list[list[float]], list[list[float]]]:
    learner = Learner(started)
    bare_link = relay_baseline.RelayLink(started.url, started.credentials("admin"), RELAY_POLL_S)
    learner.client.start()
    pause = random.Random(1)
    real: list[list[float]] = []
    bare: list[list[float]] = []
    relayed = 0

    def decide() -> float:
        start = time.perf_counter()
        learner.observe(ask=True)
        while learner.requests not in learner.stamped.times:
            learner.client.poll()
            _wait(start, f"a decision of {agents} agents in run {RUN}")
        return learner.stamped.times.pop(learner.requests) - start

    def pass_on() -> float:
        nonlocal relayed
        relayed += 1
        start = time.perf_counter()
        bare_link.send(relayed)
        while bare_link.receive() != relayed:
            _wait(start, "a relayed message")
        return time.perf_counter() - start

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
            for trip, blocks_of_arm in arms if number % 2 else reversed(arms):
                blocks_of_arm.append(block(trip, trips))
    finally:
        bare_link.close()
        learner.client.close("completed")
    return real, bare


def _wait(start: float, what: str) -> None:
    if time.perf_counter() > start + ANSWER_S:
        raise ProcessError(f"{what} did not come within {ANSWER_S:g} s, so nothing was measured")
    time.sleep(LOOK_S)


def summary(real: Sequence[Sequence[float]], bare: Sequence[Sequence[float]]) -> dict[str, float]:
    """Quantiles in milliseconds, and the ratio of the medians with its interval. Takes seconds by block; blocks of the
    two arms are pairs."""

    def ratio(chosen: Sequence[tuple[Sequence[float], Sequence[float]]]) -> float:
        ours = statistics.median([took for mine, _ in chosen for took in mine])
        theirs = statistics.median([took for _, relayed in chosen for took in relayed])
        return ours / theirs

    interval = bootstrapped(list(zip(real, bare, strict=True)), ratio)
    return {
        "decision_p50_ms": _milliseconds(real, 50),
        "decision_p99_ms": _milliseconds(real, 99),
        "relay_p50_ms": _milliseconds(bare, 50),
        "relay_p99_ms": _milliseconds(bare, 99),
        "ratio_p50": round(interval.mean, 3),
        "ratio_low": round(interval.low, 3),
        "ratio_high": round(interval.high, 3),
    }


def _milliseconds(blocks: Sequence[Sequence[float]], percent: int) -> float:
    return round(percentile([took for block in blocks for took in block], percent) * 1000, 3)


@click.option("--agents", type=int, default=4, help="Number of agents.")
@click.option("--agents-per-process", type=click.IntRange(min=1), default=4, help="Agents per process.")
@click.option("--blocks", type=int, default=20, help="Blocks of each arm, in turns.")
@click.option("--trips", type=int, default=50, help="Decisions per block.")
@click.option("--reviews", is_flag=True, help="One agent proposes, and the others review its ballots.")
def bench(agents: int, agents_per_process: int, blocks: int, trips: int, reviews: bool) -> Report:
    if min(agents, blocks, trips) < 2:
        raise ConfigError("--agents, --blocks and --trips have to be at least 2 each, for an interval")
    with tempfile.TemporaryDirectory() as scratch:
        figures = asyncio.run(measure(Path(scratch), agents, blocks, trips, agents_per_process, reviews=reviews))
    return Report(figures)


STUDY = Study("latency", bench, "--json")
