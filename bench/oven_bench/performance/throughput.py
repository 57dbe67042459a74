"""`bench throughput`: how many steps per second do agents and mesh keep up with, and how late are decisions?

The learner observes at a fixed rate, for some seconds at each rate of a ladder, whatever comes back. Ten times per
second it requests a ballot. Each vote has the newest tick that its agent had processed, and each decision that of the
mesh. The lag is the number of ticks between these and the newest observation. A rate is kept up with if no lag grows
over its last half; otherwise it is tried once more, so that a hiccup of the machine does not end the ladder. Agents
read observations that arrive together as one window: to keep up is to read every observation, not to vote on each.

`lag_p99_steps_at_100hz` is measured in a loop that polls right after it observes, 100 times per second, with a request
at every fourth step while none is open. It counts the steps from the observation to the poll that receives the
decision, so it is at least 1. The first requests are not counted.

`cpu_ms_per_step_64` is the CPU time of all processes of the stack per step, at 150 steps and 10 requests per second.
Unlike the rate, it hardly depends on what else the machine does.

`publisher_per_s` is the floor: the rate at which the log takes observations while nothing else runs.
"""

from __future__ import annotations

import asyncio
import re
import statistics
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import click
import psutil

from oven_bench.intervals import percentile
from oven_bench.performance.stack_under_test import RUN, Learner, Swarm, swarm
from oven_bench.study import Report, Study
from oven_core.bus import Msg
from oven_core.errors import ConfigError, ProcessError
from oven_core.protocol import names

LADDER = (100, 200, 500, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 8000, 10_000)
ASK_S = 0.1
AGAIN_S = 0.5
"""Time without a decision after which another request is made."""
SLICE_S = 0.001
GROWTH = 0.05
"""Share of the rate. A lag that grows slower cannot be distinguished from noise within a rung."""
BEHIND_S = 0.5
"""A longer lag at the end of a rung is not a hiccup."""
CAUGHT_UP_S = 30.0
PUBLISHED = 8000
LAG_RUNGS = 10
"""Duration of the lag measurement, in rungs. Even then the 99th percentile depends on only a few decisions."""
CPU_RATE, CPU_S = 150, 10.0
"""Steps per second, and duration in seconds, of the measurement of CPU time."""
WARM_UP = 10
"""Requests that are not counted, because every process does its work for the first time."""
_TICK = re.compile(rb'"tick":(\d+)')


async def measure(
    scratch: Path,
    ladder: Sequence[int],
    seconds: float,
    per_process: int = 4,
    *,
    many: int = 64,
    processes: int = 4,
    lag_rungs: int = LAG_RUNGS,
) -> dict[str, float | None]:
    """A rate is None if not even the lowest rung was kept up with. Raises ProcessError if a process dies or no decision
    comes."""
    async with swarm(scratch / "alone", 0, mesh=False) as running:
        publisher = await _publisher(running)
    async with swarm(scratch / "few", 4, per_process) as running:
        lags, few, _ = await _climb(running, ladder, seconds, lag_steps=int(100 * lag_rungs * seconds))
    async with swarm(scratch / "many", many, many // processes) as running:
        _, most, cpu_ms = await _climb(running, ladder, seconds, lag_steps=0)
    return {
        "steps_per_s_4": few,
        f"steps_per_s_{many}": most,
        f"cpu_ms_per_step_{many}": round(cpu_ms, 2),
        "lag_p99_steps_at_100hz": percentile(lags, 99),
        "lag_p50_steps_at_100hz": statistics.median(lags),
        "publisher_per_s": round(publisher),
        "processes_of_many": processes,
    }


async def _publisher(running: Swarm) -> float:
    learner = Learner(running)
    await asyncio.to_thread(learner.client.start)
    began = time.perf_counter()
    for _ in range(PUBLISHED):
        learner.observe(ask=False)
    while await running.bus.head(RUN) < PUBLISHED:
        if time.perf_counter() > began + CAUGHT_UP_S:
            raise ProcessError(f"the log did not take {PUBLISHED} observations within {CAUGHT_UP_S:g} s")
        await asyncio.sleep(0.01)
    rate = PUBLISHED / (time.perf_counter() - began)
    await asyncio.to_thread(learner.client.close, "completed")
    return rate


async def _climb(
    running: Swarm, ladder: Sequence[int], seconds: float, lag_steps: int
) -> tuple[list[int], int | None, float]:
    """Return the lags, the highest rate that is kept up with, and the CPU time of the stack per step, in ms."""
    climber = Climber(Learner(running))

    async def receive(message: Msg) -> None:
        tick = _TICK.search(message.data)
        if tick is not None:
            climber.lags.append(Lag(names.author(message.subject), time.perf_counter(), climber.tick - int(tick[1])))

    await running.bus.subscribe(names.Subjects(RUN).vote("*"), receive)
    await running.bus.flush()
    lags_and_rate = await asyncio.to_thread(climber.run, ladder, seconds, lag_steps, running.agents)
    running.check()
    return lags_and_rate


@dataclass(frozen=True, slots=True)
class Lag:
    """The number of ticks that an agent or the mesh was behind at a time."""

    author: str
    time: float
    ticks: int


class Climber:
    """The learner's thread, which climbs the ladder."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.lags: list[Lag] = []

    @property
    def tick(self) -> int:
        return self.learner.client.tick

    def run(
        self, ladder: Sequence[int], seconds: float, lag_steps: int, agents: Sequence[str]
    ) -> tuple[list[int], int | None, float]:
        self.learner.client.start()
        try:
            self._catch_up()
            lags = self._lags_at_100hz(lag_steps)
            cpu_ms = self._cpu_ms_per_step()
            best = None
            for rate in ladder:
                if not any(self._keeps_up(rate, seconds, agents) for _ in range(2)):
                    break
                best = rate
            return lags, best, cpu_ms
        finally:
            self.learner.client.close("completed")

    def _lags_at_100hz(self, steps: int) -> list[int]:
        learner, lags, asked_at, answered = self.learner, list[int](), 0, 0
        due = time.perf_counter()
        for step in range(steps):
            ask = step % 4 == 0 and learner.answered
            learner.observe(ask)
            asked_at = self.tick if ask else asked_at
            waited = not learner.answered
            learner.client.poll()
            if waited and learner.answered:
                answered += 1
                if answered > WARM_UP:
                    lags.append(self.tick - asked_at)
            due += 0.01
            time.sleep(max(0.0, due - time.perf_counter()))
        if asked_at and not learner.answered:
            lags.append(self.tick + 1 - asked_at)  # late by at least this much
        return lags

    def _cpu_ms_per_step(self) -> float:
        """Observe at a low rate, request at fixed steps, and return the CPU time of the child processes per step."""
        learner, steps = self.learner, int(CPU_RATE * CPU_S)
        processes = psutil.Process().children(recursive=True)
        before, due = _cpu_s(processes), time.perf_counter()
        for step in range(steps):
            learner.observe(ask=step % int(CPU_RATE * ASK_S) == 0)
            learner.client.poll()
            due += 1 / CPU_RATE
            time.sleep(max(0.0, due - time.perf_counter()))
        return 1000 * (_cpu_s(processes) - before) / steps

    def _keeps_up(self, rate: int, seconds: float, agents: Sequence[str]) -> bool:
        """Observe at a rate, and return whether all agents and the mesh kept up."""
        learner, began = self.learner, time.perf_counter()
        self.lags.clear()
        learner.stamped.tick = 0
        sent, next_ask, mesh = 0, 0.0, 0
        while (elapsed := time.perf_counter() - began) < seconds:
            for _ in range(int(elapsed * rate) - sent):
                sent += 1
                ask = elapsed >= next_ask and (learner.answered or elapsed >= next_ask + AGAIN_S)
                if ask:
                    next_ask = elapsed + ASK_S
                learner.observe(ask=ask)
            learner.client.poll()
            if learner.stamped.tick > mesh:
                mesh = learner.stamped.tick
                self.lags.append(Lag("mesh", time.perf_counter(), self.tick - mesh))
            time.sleep(SLICE_S)
        kept_up = all(
            keeps_up([lag for lag in self.lags if lag.author == author], began, seconds, rate)
            for author in (*agents, "mesh")
        )
        self._catch_up()
        return kept_up

    def _catch_up(self) -> None:
        """Wait until a request is decided quickly again, so that every rung starts with empty queues."""
        learner, limit = self.learner, time.perf_counter() + CAUGHT_UP_S
        while True:
            began = time.perf_counter()
            learner.observe(ask=True)
            while learner.requests not in learner.stamped.times and time.perf_counter() < began + 0.25:
                learner.client.poll()
                time.sleep(SLICE_S)
            if learner.requests in learner.stamped.times:
                return
            if began > limit:
                raise ProcessError(f"no decision came within {CAUGHT_UP_S:g} s, with nothing else to do")


def _cpu_s(processes: Sequence[psutil.Process]) -> float:
    return sum(sum(process.cpu_times()[:2]) for process in processes)


def keeps_up(lags: Sequence[Lag], began: float, seconds: float, rate: int) -> bool:
    """Whether the median lag did not grow from the third quarter of a rung to the fourth."""
    quarter = seconds / 4
    third, fourth = (
        [lag.ticks for lag in lags if began + n * quarter <= lag.time < began + (n + 1) * quarter] for n in (2, 3)
    )
    if not third or not fourth:
        return False  # without votes nothing shows that it keeps up
    late = statistics.median(fourth)
    return late - statistics.median(third) <= GROWTH * rate * quarter and late <= BEHIND_S * rate


@click.option("--seconds", type=float, default=6.0, help="Seconds per rung.")
@click.option(
    "--agents-per-process", type=click.IntRange(min=1), default=4, help="Agents per process, with four agents."
)
@click.option("--ladder", default=",".join(map(str, LADDER)), help="Steps per second, in rising order.")
def bench(seconds: float, agents_per_process: int, ladder: str) -> Report:
    try:
        rates = [int(rate) for rate in ladder.split(",")]
    except ValueError:
        raise ConfigError(f"--ladder {ladder} is not a list of whole numbers; give e.g. 100,200,500") from None
    if rates != sorted(set(rates)) or rates[0] < 10 or seconds < 2:
        raise ConfigError(
            f"--ladder {ladder} has to rise from at least 10, and --seconds {seconds:g} has to be at least 2"
        )
    with tempfile.TemporaryDirectory() as scratch:
        figures = asyncio.run(measure(Path(scratch), rates, seconds, agents_per_process))
    return Report(figures)


STUDY = Study("throughput", bench, "--json")
