"""The mesh reads on, and says more, while the log confirms what it said; a reader falls behind and catches up."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Any

import pytest
from tests.support.learner_side import LIMIT_S, RUN, serving, until

from oven_core.bus.connection import Bus
from oven_core.errors import BusError
from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    ActuatorSpec,
    AgentStatus,
    BallotOpened,
    Decision,
    Observation,
    RunStarted,
    Vote,
)
from oven_core.protocol.names import Subjects
from oven_core.protocol.rules import Rules
from oven_core.replica.replica_process import serve
from oven_core.security.credentials import Credentials
from oven_runs.log.replay import replay

ON = Subjects(RUN)
KNOB = ActuatorSpec(name="grad.clip", kind="scalar", scale="log", low=0.1, high=10, value=1.0)


class Held(Bus):
    """A real connection whose first append is held, and then fails."""

    def __init__(self, *args: Any) -> None:
        super().__init__(*args)
        self.seen = 0
        self.tried: list[str] = []
        self.go_on = asyncio.Event()

    async def read(self, *args: Any, **options: Any) -> AsyncGenerator[Event, None]:
        async for event in super().read(*args, **options):
            yield event
            self.seen = event.seq  # the reader is back for the next

    async def append(self, subject: str, data: bytes, **options: Any) -> int:
        self.tried.append(subject)
        if len(self.tried) == 1:
            await self.go_on.wait()
            raise BusError("held")
        return await super().append(subject, data, **options)


def observed(tick: int) -> Observation:
    return Observation(incarnation=1, n=tick, tick=tick, step=tick, progress=0.1, metrics={"loss": 1.0})


def proposed() -> Vote:
    return Vote(actuator=KNOB.name, stance="propose", value=2.0, tick=1, confidence=0.9)


async def test_a_decision_does_not_wait_for_its_ballot_and_what_failed_is_tried_again(tmp_path: Path) -> None:
    async with serving(tmp_path) as server, server.bus() as admin:
        held = await Held.open(server.url, Credentials.load(server.creds("mesh")))
        assert isinstance(held, Held)
        mesh = asyncio.create_task(serve(held, RUN))
        try:
            started = RunStarted(incarnation=1, n=0, recipe="x", actuators=(KNOB,), rules=Rules(newcomers="full"))
            await admin.append(ON.run, started.wire())
            for name in ("a", "b"):
                await admin.publish(ON.agent(name), AgentStatus(state="joined", moves=(KNOB.name,)).wire())
            await admin.append(ON.observation, observed(1).wire())
            await until(lambda: held.seen >= 4)
            await admin.publish(ON.vote("a"), proposed().wire())
            await until(lambda: held.tried)
            await admin.publish(ON.vote("b"), proposed().wire())
            await until(lambda: held.seen >= 6)
            await server.logged(lambda event: isinstance(event.body, Decision))
            held.go_on.set()
            await server.logged(lambda event: isinstance(event.body, BallotOpened))
            ballot, decision, again = held.tried
            assert ballot == again != decision
            report = replay(await server.events(), RUN)
            assert report.same and not report.pending
        finally:
            mesh.cancel()
            await asyncio.gather(mesh, return_exceptions=True)
            await held.close()


async def test_a_reader_that_falls_behind_misses_nothing(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """It has no room for what is pushed meanwhile, and asks for it again."""
    monkeypatch.setattr("oven_core.bus.log_reader.MAX_QUEUED", 100)
    count = 1000
    async with serving(tmp_path) as server, server.bus() as admin, server.bus() as bus:
        async with asyncio.timeout(LIMIT_S):
            await admin.append(ON.observation, observed(1).wire())
            reading = bus.read(RUN)
            assert (await anext(reading)).seq == 1
            for tick in range(2, count + 1):
                await admin.publish(ON.observation, observed(tick).wire())
            while await bus.head(RUN) < count:  # the reader's connection takes in what is pushed meanwhile
                pass
            seen = [(await anext(reading)).seq for _ in range(count - 1)]
            assert seen == list(range(2, count + 1))
            await reading.aclose()
