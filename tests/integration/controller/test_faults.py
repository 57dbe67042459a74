"""Faults in a running swarm: the run goes on, healthy agents are heard, and the log stays sound."""

from __future__ import annotations

import re
import signal
from collections.abc import AsyncIterator
from pathlib import Path

import pytest
from tests.support.learner_side import RUN, Process, Server, serving, until
from tests.support.swarm import RULES, Swarm, swarming

from oven_core.bus import streams
from oven_core.bus.streams import MAX_VOTES, VOTE_BYTES, VOTES_AGE_S
from oven_core.protocol.events import Event
from oven_core.protocol.messages import BallotOpened, Decision

# Is there, and never has an opinion: ballots wait for it.
STILL = '''
"""Abstains."""
from oven_agents import Agent

class Other(Agent):
    moves = ("grad.clip",)

    def vote(self, window):
        return None
'''
# argv: bytes of rationale, votes a second.
FLOOD = """
import asyncio, os, sys
from pathlib import Path
from oven_core.bus.connection import Bus
from oven_core.security.credentials import Credentials
from oven_core.protocol.messages import AgentStatus, Vote
from oven_core.protocol.names import Subjects

async def main(size, rate):
    on = Subjects(os.environ["OVEN_RUN"])
    body = Vote(actuator="grad.clip", stance="for", tick=1, confidence=0.1).wire()
    body = body[:-1] + b', "padding": "' + b"x" * size + b'"}'
    async with Bus.connect(os.environ["OVEN_URL"], Credentials.load(Path(os.environ["OVEN_CREDS"]))) as bus:
        await bus.publish(on.agent("other"), AgentStatus(state="joined").wire())
        loop = asyncio.get_running_loop()
        began, sent = loop.time(), 0
        while True:
            while sent < (loop.time() - began) * rate:
                await bus.publish(on.vote("other"), body)
                sent += 1
            await bus.flush()
            await asyncio.sleep(0.001)

asyncio.run(main(int(sys.argv[1]), int(sys.argv[2])))
"""


@pytest.fixture
async def server(tmp_path: Path) -> AsyncIterator[Server]:
    async with serving(tmp_path, ("pendulum", "other")) as server:
        yield server


@pytest.fixture
async def swarm(server: Server, tmp_path: Path) -> AsyncIterator[Swarm]:
    async with swarming(server, tmp_path) as swarm:
        await swarm.mesh()
        await swarm.agent("pendulum")
        yield swarm


async def test_all_clients_leave_a_frozen_server_and_reconnect_later(server: Server, swarm: Swarm) -> None:
    async with swarm.training(50) as learner:
        await swarm.decided()
        server.freeze(True)
        for name in ("mesh", "pendulum"):
            await until(lambda name=name: "the bus was silent for" in swarm.processes[name].output())  # type: ignore[misc]
        was = learner.tick
        await until(lambda: learner.tick > was + 50)
        server.freeze(False)
        await swarm.ticks(1)
        await swarm.decided(3)
    assert await swarm.ended() >= 4


async def test_a_frozen_agent_delays_nobody_and_is_lost(swarm: Swarm) -> None:
    await swarm.agent("other", STILL)
    async with swarm.training(50):
        await swarm.decided(2)
        swarm.signal(signal.SIGSTOP, "other")
        since = swarm.seq
        await swarm.decided(3)
        await swarm.logged(lambda event: eligible(event, "pendulum") and not eligible(event, "other"), after=since)
        swarm.signal(signal.SIGCONT, "other")
        await swarm.logged(lambda event: eligible(event, "other"), after=swarm.seq)
    assert await swarm.ended() >= 5
    opened = {event.body.id: event.body.tick for event in swarm.events if isinstance(event.body, BallotOpened)}
    for event in swarm.events:
        if isinstance(event.body, Decision) and event.body.ballot in opened:
            assert event.body.tick <= opened[event.body.ballot] + RULES.window_ticks


async def test_a_flood_of_votes_leaves_room_for_the_others(server: Server, swarm: Swarm) -> None:
    async with swarm.training(50):
        await swarm.decided(2)
        flooding = Process(["-c", FLOOD, "0", "10000"], server.env("other"), swarm.folder / "flood.log")
        swarm.processes["flood"] = flooding
        since = (await swarm.logged(lambda event: event.subject.endswith("vote.other"))).seq
        await swarm.ticks(100)
        await swarm.decided(3)
        assert flooding.popen.poll() is None
        flooding.kill()
    assert await swarm.ended() >= 5
    flood = [event for event in swarm.events if event.seq > since and event.subject.endswith("vote.other")]
    lasted_s = (flood[-1].time - flood[0].time).total_seconds()
    assert len(flood) <= MAX_VOTES * (lasted_s / VOTES_AGE_S + 2)


async def test_oversized_votes_are_not_in_the_log_and_hold_up_nobody(server: Server, swarm: Swarm) -> None:
    async with swarm.training(50):
        await swarm.decided(2)
        sending = Process(["-c", FLOOD, str(2 * VOTE_BYTES), "200"], server.env("other"), swarm.folder / "big.log")
        swarm.processes["big"] = sending
        await swarm.logged(lambda event: event.subject.endswith("agent.other"))
        await swarm.ticks(50)
        await swarm.decided(3)
        assert sending.popen.poll() is None
        sending.kill()
    assert await swarm.ended() >= 5
    assert not [event for event in swarm.events if event.subject.endswith("vote.other")]


async def test_a_full_disk_stops_the_log_and_not_the_training(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """What could not be logged is kept, and follows when there is room."""
    with monkeypatch.context() as small:
        small.setattr("oven_runs.server.embedded_server.MAX_STORE_BYTES", 1 << 20)
        server = Server(tmp_path, ("pendulum",))
        await server.start()
    try:
        async with server.bus() as bus:
            await streams.create(bus.jetstream, RUN)
        async with swarming(server, tmp_path) as swarm:
            await swarm.mesh()
            await swarm.agent("pendulum")
            async with swarm.training(100, gauges=200) as learner:
                await swarm.decided(2)
                await until(lambda: "resources" in caplog.text)
                was = learner.tick
                await until(lambda: learner.tick > was + 50)
                assert re.search(r"the log refused oven\.r\.\w+: insufficient", caplog.text)
                await server.kill()
                await server.start()
                await swarm.decided(2)
            assert await swarm.ended() >= 4
    finally:
        await server.stop()


def eligible(event: Event, agent: str) -> bool:
    return isinstance(event.body, BallotOpened) and agent in event.body.eligible
