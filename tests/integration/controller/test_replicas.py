"""Three mesh replicas on one log: killed, frozen, all gone and back; every decision is there once, and follows."""

from __future__ import annotations

import asyncio
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.learner_side import LIMIT_S, RUN, Server, serving, until
from tests.support.swarm import RULES, Swarm, swarming

from oven_core.protocol.history_requests import HistoryBatch, HistoryRequest
from oven_core.protocol.names import Subjects

ON = Subjects(RUN)
MESHES = ("mesh", "mesh-2", "mesh-3")
DUPLICATES_S = 0.5
"""Far below the outages here: nothing rests on how long the server remembers a message id."""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with serving(tmp_path, ("pendulum", "other"), duplicates_s=DUPLICATES_S) as server:
        yield server


@pytest.fixture
async def swarm(server: Server, tmp_path: Path) -> AsyncIterator[Swarm]:
    async with swarming(server, tmp_path) as swarm:
        await asyncio.gather(*map(swarm.mesh, MESHES))
        await swarm.agent("pendulum")
        yield swarm


async def silence(server: Server, name: str) -> None:
    """Until the server knows that this replica is gone; before that it may choose it to answer."""
    async with server.bus() as admin, asyncio.timeout(LIMIT_S):
        while await admin.has_listener(ON.history_of(name)):
            await asyncio.sleep(0.01)


async def ended(swarm: Swarm) -> int:
    """Decisions in a log that is over, whole and sound."""
    for name in MESHES:
        process = swarm.processes[name]
        assert process.popen.poll() is None and "another" not in process.output(), process.output()
    return await swarm.ended()


async def test_killing_each_replica_in_turn_duplicates_no_decision(swarm: Swarm) -> None:
    async with swarm.training(100):
        for name in MESHES:
            await swarm.decided(3)
            swarm.processes[name].kill()
            await swarm.decided(3)
            await swarm.mesh(name)
        await swarm.decided(3)
    assert await ended(swarm) >= 21


async def test_a_replica_that_was_stopped_for_long_does_no_harm(swarm: Swarm) -> None:
    """It wakes with outputs that it meant to publish long ago, and with a log that has gone on without it."""
    async with swarm.training(100):
        await swarm.decided(2)
        swarm.signal(signal.SIGSTOP, "mesh-2")
        await swarm.ticks(2 * RULES.silent_ticks + RULES.expire_ticks)
        await swarm.decided(10)
        swarm.signal(signal.SIGCONT, "mesh-2")
        await swarm.decided(3)
        for name in ("mesh", "mesh-3"):
            swarm.processes[name].kill()
        await swarm.decided(3)
        await asyncio.gather(swarm.mesh("mesh"), swarm.mesh("mesh-3"))
    assert await ended(swarm) >= 18


async def test_decisions_resume_after_all_meshes_were_away_longer_than_every_window(swarm: Swarm) -> None:
    async with swarm.training(50):
        await swarm.decided(3)
        for name in MESHES:
            swarm.processes[name].kill()
        await swarm.ticks(2 * RULES.silent_ticks + RULES.expire_ticks)
        await asyncio.gather(*map(swarm.mesh, MESHES))
        await swarm.decided(5)
    assert await ended(swarm) >= 8


async def test_history_is_answered_once_while_any_replica_lives(server: Server, swarm: Swarm) -> None:
    async with swarm.training(50), server.bus("other") as agent:
        await swarm.decided()
        for gone in ("mesh-3", "mesh"):
            answers: list[HistoryBatch] = []

            async def hear(message, answers=answers):  # type: ignore[no-untyped-def]
                answers.append(HistoryBatch.model_validate_json(message.data))

            inbox = agent.client.new_inbox()
            await agent.subscribe(inbox, hear)
            for _ in range(12):
                await agent.client.publish(ON.history, HistoryRequest(limit=1).wire(), reply=inbox)
            await until(lambda answers=answers: len(answers) >= 12)  # type: ignore[misc]
            assert len(answers) == 12 and all(batch.events[0].seq == 1 for batch in answers)
            swarm.processes[gone].kill()
            await silence(server, gone)
        async with server.bus() as admin:  # each by itself: who is asked for
            await admin.request(ON.history_of("mesh-2"), HistoryRequest(limit=1).wire())
        await asyncio.gather(swarm.mesh("mesh"), swarm.mesh("mesh-3"))
    await ended(swarm)
