"""Three mesh replicas, an agent and a learner that announces an actuator anew in the middle: the log follows, byte for
byte, also for a replica that comes later."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path

import pytest
from tests.support.learner_side import RUN, Server, serving
from tests.support.swarm import swarming

from oven_core.protocol.announcements import ActuatorAnnounced
from oven_core.protocol.messages import Decision
from oven_core.security.signing import Keyring
from oven_learner.client.oven_client import OvenClient
from oven_learner.link.resume_state import read_resume_state

# Wants the last of the choices, and the first again; nothing while there is one.
CHOOSER = '''
"""Turns a choice to and fro, once there are two."""
from oven_agents import Agent

class Chooser(Agent):
    moves = ("teacher.active",)

    def vote(self, window):
        knob = window.knobs["teacher.active"]
        wanted = knob.spec.choices[-1] if knob.value == knob.spec.choices[0] else knob.spec.choices[0]
        if wanted == knob.value:
            return None
        return window.propose("teacher.active", wanted, confidence=0.95, why="the other one")
'''
TEACHER = "teacher.active"
MESHES = ("mesh", "mesh-2", "mesh-3")


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with serving(tmp_path, ("chooser",), duplicates_s=0.5) as server:
        yield server


def add(learner: OvenClient, active: list[str], name: str) -> None:
    """As a script would that registers another teacher."""
    knobs = learner.actuators
    if TEACHER in knobs:
        knobs.update(TEACHER, choices=(*knobs.spec(TEACHER).choices, name))
    else:
        knobs.choice(TEACHER, lambda: active[0], lambda value: active.__setitem__(0, value), (active[0], name))
    learner.announce(TEACHER)


async def test_an_announcement_is_followed_by_every_replica(server: Server, tmp_path: Path) -> None:
    active = ["small"]
    async with swarming(server, tmp_path) as swarm:
        await asyncio.gather(*map(swarm.mesh, MESHES))
        await swarm.agent("chooser", CHOOSER)
        async with swarm.training(100) as learner:
            await swarm.ticks(5)
            swarm.signal(signal.SIGSTOP, "mesh-2")
            for name in ("big", "huge"):
                swarm.between_steps.append(partial(add, learner, active, name))
                await swarm.logged(lambda event, name=name: chosen(event.body, name))  # type: ignore[misc]
            swarm.processes["mesh"].kill()
            await swarm.mesh("mesh")
            swarm.signal(signal.SIGCONT, "mesh-2")
            await swarm.decided(3)
        for name in MESHES:
            process = swarm.processes[name]
            assert process.popen.poll() is None and "another" not in process.output(), process.output()
        assert await swarm.ended() >= 5
        announced = [event.body.actuator for event in swarm.events if isinstance(event.body, ActuatorAnnounced)]
        assert [spec.choices for spec in announced] == [("small", "big"), ("small", "big", "huge")]
        async with server.bus() as bus:
            past = await read_resume_state(bus, RUN, Keyring())
        assert past.announced == {"1": {TEACHER: announced[-1]}} and past.values["1"][TEACHER] == active[0]


def chosen(body: object, name: str) -> bool:
    return isinstance(body, Decision) and body.verdict == "adopted" and body.value == name
