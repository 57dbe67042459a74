"""`bench throughput`: how many steps per second agents and mesh follow, and how many steps late a decision is.

Open loop: the learner observes at a fixed rate whatever comes back, a rung of some seconds at each rate of a ladder.
Ten times per second it asks for a ballot. Each vote says the newest tick that its agent had dealt with, each decision
the mesh's; how far these lie behind what was observed by then is the lag, in ticks. A rung is followed if the lag of
no one grows over its last half; one that is not is tried once more, so that a hiccup of the machine ends no ladder.
Agents take what came together as one window: to follow is to have read every observation, not to have voted on each.

`lag_p99_steps_at_100hz` is of a loop that polls right after it observes, 100 times per second, with a request at every
fourth step while none is open: the steps from the observation to the poll that takes the decision. 1 is the least:
the next step. Some requests come first that are not counted.

`publisher_per_s` is the floor: what the log takes from the learner's client while no one else is there.
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
from typing import Annotated

from nats.aio.msg import Msg
from typer import Option

from oven_bench.intervals import percentile
from oven_bench.performance.stack_under_test import RUN, Learner, Swarm, swarm
from oven_bench.study import Report, Study
from oven_core.errors import ConfigError, ProcessError
from oven_core.protocol import names

LADDER = (100, 200, 500, 1000, 1500, 2000, 3000, 4000, 5000, 6000, 8000, 10_000)
ASK_S = 0.1
AGAIN_S = 0.5
"""A request that no one answered for so long is followed by another."""
SLICE_S = 0.001
GROWTH = 0.05
"""Of the rate: a lag that grows slower than that is not told from noise within a rung."""
BEHIND_S = 0.5
"""And one that is longer than this at the end was not a hiccup."""
CAUGHT_UP_S = 30.0
PUBLISHED = 8000
LAG_RUNGS = 10
"""The lag at 100 steps per second is measured for as long as so many rungs take: of a few hundred decisions the 99th
percentile hangs on five of them."""
WARM_UP = 10
"""Requests whose lag is not counted: every process does its work for the first time."""
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
    """A rate of None: not even the lowest rung was followed. Raises ProcessError when a process dies, or no decision
    comes at all."""
    async with swarm(scratch / "alone", 0, mesh=False) as made:
        publisher = await _publisher(made)
    async with swarm(scratch / "few", 4, per_process) as made:
        lags, few = await _climb(made, ladder, seconds, lag_steps=int(100 * lag_rungs * seconds))
    async with swarm(scratch / "many", many, many // processes) as made:
        _, most = await _climb(made, ladder, seconds, lag_steps=0)
    return {
        "steps_per_s_4": few,
        f"steps_per_s_{many}": most,
        "lag_p99_steps_at_100hz": percentile(lags, 99),
        "lag_p50_steps_at_100hz": statistics.median(lags),
        "publisher_per_s": round(publisher),
        "processes_of_many": processes,
    }


async def _publisher(made: Swarm) -> float:
    learner = Learner(made)
    await asyncio.to_thread(learner.client.start)
    began = time.perf_counter()
    for _ in range(PUBLISHED):
        learner.observe(ask=False)
    while await made.bus.head(RUN) < PUBLISHED:
        if time.perf_counter() > began + CAUGHT_UP_S:
            raise ProcessError(f"the log did not take {PUBLISHED} observations within {CAUGHT_UP_S:g} s")
        await asyncio.sleep(0.01)
    rate = PUBLISHED / (time.perf_counter() - began)
    await asyncio.to_thread(learner.client.close, "completed")
    return rate


async def _climb(made: Swarm, ladder: Sequence[int], seconds: float, lag_steps: int) -> tuple[list[int], int | None]:
    climber = Climber(Learner(made))

    async def hear(message: Msg) -> None:
        found = _TICK.search(message.data)
        if found is not None:
            climber.lags.append(Lag(names.author(message.subject), time.perf_counter(), climber.tick - int(found[1])))

    await made.bus.subscribe(names.Subjects(RUN).vote("*"), hear)
    await made.bus.flush()
    found = await asyncio.to_thread(climber.run, ladder, seconds, lag_steps, made.agents)
    made.check()
    return found


@dataclass(frozen=True, slots=True)
class Lag:
    """How many ticks `who` was behind when it spoke."""

    who: str
    at: float
    ticks: int


class Climber:
    """The learner's thread."""

    def __init__(self, learner: Learner) -> None:
        self.learner = learner
        self.lags: list[Lag] = []

    @property
    def tick(self) -> int:
        return self.learner.client.tick

    def run(
        self, ladder: Sequence[int], seconds: float, lag_steps: int, agents: Sequence[str]
    ) -> tuple[list[int], int | None]:
        self.learner.client.start()
        try:
            self._catch_up()
            lags = self._lags_at_100hz(lag_steps)
            best = None
            for rate in ladder:
                if not any(self._followed(rate, seconds, agents) for _ in range(2)):
                    break
                best = rate
            return lags, best
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
            lags.append(self.tick + 1 - asked_at)  # late by so much at least
        return lags

    def _followed(self, rate: int, seconds: float, agents: Sequence[str]) -> bool:
        """Observe at that rate; whether everybody kept up."""
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
        kept = all(
            keeps_up([lag for lag in self.lags if lag.who == who], began, seconds, rate) for who in (*agents, "mesh")
        )
        self._catch_up()
        return kept

    def _catch_up(self) -> None:
        """Until a request is answered quickly again: every rung begins with nothing waiting."""
        learner, limit = self.learner, time.perf_counter() + CAUGHT_UP_S
        while True:
            began = time.perf_counter()
            learner.observe(ask=True)
            while learner.asked not in learner.stamped.at and time.perf_counter() < began + 0.25:
                learner.client.poll()
                time.sleep(SLICE_S)
            if learner.asked in learner.stamped.at:
                return
            if began > limit:
                raise ProcessError(f"no decision came within {CAUGHT_UP_S:g} s, with nothing else to do")


def keeps_up(lags: Sequence[Lag], began: float, seconds: float, rate: int) -> bool:
    """Whether the lag grew over the last half of a rung: from its third quarter to its fourth, by medians."""
    quarter = seconds / 4
    third, fourth = (
        [lag.ticks for lag in lags if began + n * quarter <= lag.at < began + (n + 1) * quarter] for n in (2, 3)
    )
    if not third or not fourth:
        return False  # nobody spoke: there is no saying what was followed
    late = statistics.median(fourth)
    return late - statistics.median(third) <= GROWTH * rate * quarter and late <= BEHIND_S * rate


def bench(
    seconds: Annotated[float, Option(help="Seconds of a rung.")] = 6.0,
    agents_per_process: Annotated[int, Option(min=1, help="Of the first four agents.")] = 4,
    ladder: Annotated[str, Option(help="Steps per second, rising.")] = ",".join(map(str, LADDER)),
) -> Report:
    try:
        rates = [int(rate) for rate in ladder.split(",")]
    except ValueError:
        raise ConfigError(f"--ladder {ladder} is not a list of whole numbers such as 100,200,500") from None
    if rates != sorted(set(rates)) or rates[0] < 10 or seconds < 2:
        raise ConfigError(f"--ladder {ladder} rises, from 10 at least, and --seconds {seconds:g} is 2 at least")
    with tempfile.TemporaryDirectory() as scratch:
        found = asyncio.run(measure(Path(scratch), rates, seconds, agents_per_process))
    return Report(found)


STUDY = Study("throughput", bench, "--json")
