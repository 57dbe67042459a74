"""An agent whose connection was lost asks history for what it missed."""

from __future__ import annotations

import asyncio
import os
import signal
from pathlib import Path

from tests.support.learner_side import RUN, Process, Server, serving

from oven_core.protocol.events import Event
from oven_core.protocol.messages import (
    ActuatorSpec,
    AgentStatus,
    Horizon,
    LearnerMessage,
    MetricSpec,
    Observation,
    RunStarted,
    Vote,
)
from oven_core.protocol.names import Subjects
from oven_core.replica.replica_process import serve_history

ON = Subjects(RUN)
COUNTER = '''
"""Says in each vote which ticks it has seen."""
from oven_agents import Agent

class Counter(Agent):
    moves = ("grad.clip",)

    def vote(self, window):
        ticks = [observation.tick for observation in window.observations]
        return window.propose("grad.clip", 2.0, confidence=0.5, why=f"saw {len(ticks)} up to {ticks[-1]}")
'''


async def say(server: Server, *messages: LearnerMessage) -> None:
    async with server.bus("learner") as bus:
        for message in messages:
            subject = ON.run if isinstance(message, RunStarted) else ON.observation
            await bus.append(subject, message.wire(), message_id=f"1-{message.n}")


def observed(*ticks: int) -> list[Observation]:
    return [Observation(incarnation=1, n=t, tick=t, step=t, progress=0.1, metrics={"loss": 1.0}) for t in ticks]


def voted(words: str):  # type: ignore[no-untyped-def]
    return lambda event: isinstance(event.body, Vote) and event.body.rationale == words


async def history_of(server: Server, begun: asyncio.Event) -> None:
    async with server.bus("history") as bus:
        await serve_history(bus, RUN)
        begun.set()
        await bus.closed.wait()


async def test_messages_sent_during_a_disconnection_are_delivered_later(tmp_path: Path) -> None:
    (tmp_path / "counter.py").write_text(COUNTER)
    started = RunStarted(
        incarnation=1, n=0, recipe="made up", horizon=Horizon(max_steps=100), metrics=(MetricSpec(name="loss"),),
        actuators=(ActuatorSpec(name="grad.clip", kind="scalar", scale="log", low=0.1, high=10, value=1.0),),
    )  # fmt: skip
    async with serving(tmp_path, ("counter",)) as server:
        begun = asyncio.Event()
        serving_history = asyncio.create_task(history_of(server, begun))
        await begun.wait()
        await say(server, started, *observed(1, 2, 3))
        module = ["-P", "-m", "oven_controller.stack.run_process", "agent", str(tmp_path / "counter.py")]
        agent = Process(module, server.env("counter"), tmp_path / "agent.log")
        try:
            await server.logged(voted("saw 3 up to 3"))
            await say(server, *observed(4))
            await server.logged(voted("saw 4 up to 4"))

            os.kill(agent.popen.pid, signal.SIGSTOP)  # so that it cannot be back before the next are said
            await server.kill()
            await server.start()
            await say(server, *observed(5, 6, 7))
            os.kill(agent.popen.pid, signal.SIGCONT)
            await server.logged(voted("saw 7 up to 7"))
            await say(server, *observed(8))
            await server.logged(voted("saw 8 up to 8"))
            assert agent.popen.poll() is None
            events: list[Event] = await server.events()
            states = [event.body.state for event in events if isinstance(event.body, AgentStatus)]
            assert states.count("joined") == 2, "it says again that it is there"
        finally:
            agent.kill()
            serving_history.cancel()
            await asyncio.gather(serving_history, return_exceptions=True)
