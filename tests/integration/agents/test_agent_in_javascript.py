"""examples/agent.mjs, written from the protocol alone, against the real server and a real mesh: it votes and counts."""

from __future__ import annotations

import asyncio
import shutil
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from dataclasses import dataclass
from pathlib import Path

import pytest
from tests.support.learner_side import ROOT, RUN, Process, Server, serving

from oven_core.bus.connection import Bus
from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    ActuatorSpec,
    AgentStatus,
    Decision,
    LearnerMessage,
    Observation,
    RunEnded,
    RunStarted,
    Vote,
)
from oven_core.protocol.names import Subjects
from oven_core.protocol.rules import Rules
from oven_runs.log.replay import replay

EXAMPLES = ROOT / "examples"
NODE = shutil.which("node")
NEEDS = pytest.mark.skipif(
    NODE is None or not (EXAMPLES / "node_modules").is_dir(), reason="needs Node, and `npm ci` in examples/"
)
LR = "optimizer.lr_scale"
SCOUT = "scout"
ON = Subjects(RUN)


class Learner:
    """Says what a run with one learning rate says, a tick at a time."""

    def __init__(self, bus: Bus) -> None:
        self.bus = bus
        self.n = 0
        self.tick = 0

    async def start(self) -> None:
        lr = ActuatorSpec(name=LR, kind="scalar", scale="log", low=0.1, high=3.0, value=1.0)
        run = RunStarted(
            incarnation=1,
            n=0,
            recipe="toy",
            actuators=(lr,),
            rules=Rules(evidence_kinds=1, quorum_confidence=0.5, newcomers="full"),
        )
        await self._say(ON.run, run)

    async def observe(self, norm: float) -> None:
        self.n, self.tick = self.n + 1, self.tick + 1
        metrics = {"grad_norm": norm, "loss": float("nan")}
        await self._say(
            ON.observation,
            Observation(incarnation=1, n=self.n, tick=self.tick, step=self.tick, progress=0, metrics=metrics),
        )

    async def end(self) -> None:
        self.n += 1
        await self._say(ON.run, RunEnded(incarnation=1, n=self.n, reason="completed", tick=self.tick, step=self.tick))

    async def _say(self, subject: str, message: LearnerMessage) -> None:
        await self.bus.append(subject, message.wire(), message_id=f"1-{message.n}")


@dataclass
class Stage:
    server: Server
    learner: Learner
    scout: Process
    mesh: Process

    async def logged(self, wanted: Callable[[Event], object]) -> list[Event]:
        try:
            await self.server.logged(wanted)
        except TimeoutError:
            raise AssertionError(f"agent: {self.scout.output()}\nmesh: {self.mesh.output()}") from None
        return await self.server.events()


@asynccontextmanager
async def stage(folder: Path) -> AsyncIterator[Stage]:
    """A run that is 25 ticks old, its mesh, and the agent, which has just joined."""
    async with serving(folder, (SCOUT,)) as server, server.bus("learner") as bus:
        mesh = Process(
            ["-c", "from oven_core.replica.replica_process import main; main([])"],
            server.env("mesh"),
            folder / "mesh.log",
        )
        learner = Learner(bus)
        await learner.start()
        for _ in range(25):
            await learner.observe(1.0)  # it has to ask history for them
        while not await bus.has_listener(ON.history):
            assert mesh.popen.poll() is None, mesh.output()
            await asyncio.sleep(0.05)
        run = f"import os; os.execv({NODE!r}, ['node', {str(EXAMPLES / 'agent.mjs')!r}])"
        stage = Stage(server, learner, Process(["-c", run], server.env(SCOUT), folder / "scout.log"), mesh)
        try:
            await stage.logged(lambda event: isinstance(event.body, AgentStatus) and event.body.state == "done")
            yield stage
        finally:
            stage.scout.kill()
            mesh.kill()


@NEEDS
async def test_its_proposal_is_decided_and_it_says_goodbye(tmp_path: Path) -> None:
    async with stage(tmp_path) as on:
        await on.learner.observe(9.0)  # nine times what it saw in the history
        await on.logged(lambda event: isinstance(event.body, Vote))
        for _ in range(5):
            await on.learner.observe(1.0)
        await on.logged(lambda event: isinstance(event.body, Decision))
        on.scout.terminate()
        assert await on.scout.ended() == 0, on.scout.output()
        await on.learner.end()
        events = await on.logged(lambda event: isinstance(event.body, RunEnded))
    (decision,) = [event.body for event in events if isinstance(event.body, Decision)]
    assert (decision.verdict, decision.actuator, decision.value) == ("adopted", LR, 0.5)
    (line,) = decision.tally
    assert (line.agent, line.stance, line.weight) == (SCOUT, "propose", 0.6) and "9.00" in line.rationale
    states = [event.body.state for event in events if isinstance(event.body, AgentStatus)]
    assert states[0] == "joined" and states[-1] == "left"
    assert replay(events, RUN).same
