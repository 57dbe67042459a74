"""Hostile clients without the SDK, which have an agent's key and publish on an agent's two subjects.

Usage: `clients_without_sdk.py silencer|starver|hopeful|flooder`, with the environment that `oven-controller creds add`
prints.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from oven_core.bus.connection import Bus
from oven_core.bus.nats_client import InlineMessage
from oven_core.protocol.events import UNKNOWN_TIME, Event
from oven_core.protocol.messages import (
    ActuatorSpec,
    AgentStatus,
    Decision,
    Message,
    Observation,
    RunStarted,
    Value,
    Vote,
)
from oven_core.protocol.names import Subjects
from oven_core.security.credentials import Credentials
from oven_runs.access.log_sources import read_history

SCALE, ROLLBACK = "optimizer.lr_scale", "run.rollback"
VOTES_A_SECOND = 500
"""Votes that the flooder sends per second, far more than any agent needs."""
BATCHES_A_SECOND = 10
"""Batches per second in which it sends them."""


class Silencer:
    """Always keeps a ballot on the learning rate open, for a change in which it has almost no confidence. As soon as
    one is decided it opens the next."""

    KNOBS: frozenset[str] | None = frozenset({SCALE})

    def __init__(self) -> None:
        self.specs: dict[str, ActuatorSpec] = {}

    def answer(self, body: object) -> list[Message]:
        if isinstance(body, RunStarted):
            self.specs = {spec.name: spec for spec in body.actuators if self.KNOBS is None or spec.name in self.KNOBS}
            return [AgentStatus(state="joined", moves=tuple(self.specs))]
        if isinstance(body, Observation):
            return [half_hearted(spec, body.tick) for spec in self.specs.values()]
        if isinstance(body, Decision) and body.actuator in self.specs:
            return [half_hearted(self.specs[body.actuator], body.tick)]
        return []


class Starver(Silencer):
    """Does the same on every actuator."""

    KNOBS = None


class Hopeful(Silencer):
    """Proposes a change of two knobs at every tick, in earnest and each time for a new reason."""

    KNOBS = frozenset({SCALE, "grad.clip"})

    def answer(self, body: object) -> list[Message]:
        if not isinstance(body, Observation):
            return super().answer(body) if isinstance(body, RunStarted) else []
        reason = f"the loss of tick {body.tick} asks for it"
        return [
            half_hearted(spec, body.tick).model_copy(update={"confidence": 0.5, "rationale": reason})
            for spec in self.specs.values()
        ]


def half_hearted(spec: ActuatorSpec, tick: int) -> Vote:
    return Vote(actuator=spec.name, stance="propose", value=some_value(spec), tick=tick, confidence=0.01)


def some_value(spec: ActuatorSpec) -> Value:
    """An extreme value that the actuator accepts."""
    if spec.kind == "simplex":
        return {name: float(name == spec.choices[0]) for name in spec.choices}
    if spec.kind == "choice":
        return spec.choices[0]
    return 0.0 if spec.name == ROLLBACK else spec.high


async def take_part(client: Silencer) -> None:
    """Answer the newest RunStarted, which may be in the log already, and all messages that follow, until the process
    is ended."""
    credentials = Credentials.load(Path(os.environ["OVEN_CREDS"]))
    on, queue = Subjects(os.environ["OVEN_RUN"]), asyncio.Queue[InlineMessage]()
    async with Bus.connect(os.environ["OVEN_URL"], credentials) as bus:
        for subject in (on.run, on.observation, on.decision("*")):
            await bus.subscribe_inline(subject, queue.put_nowait)
        earlier = await read_history(bus, os.environ["OVEN_RUN"])
        starts = [event.body for event in earlier if isinstance(event.body, RunStarted)]
        body: object = starts[-1] if starts else None
        while True:
            for reply in client.answer(body):
                to = on.vote(credentials.name) if isinstance(reply, Vote) else on.agent(credentials.name)
                await bus.publish(to, reply.wire())
            await asyncio.sleep(0)  # lets a Ctrl-C in before all messages are answered
            message = await queue.get()
            body = Event.from_message(0, message.subject, message.data, UNKNOWN_TIME, message.headers).body


async def flood() -> None:
    """Send votes for ballots that no one has opened."""
    credentials = Credentials.load(Path(os.environ["OVEN_CREDS"]))
    on = Subjects(os.environ["OVEN_RUN"])
    nonsense = Vote(actuator=SCALE, stance="against", tick=0, confidence=0.01, rationale="no " * 300).wire()
    async with Bus.connect(os.environ["OVEN_URL"], credentials) as bus:
        await bus.publish(on.agent(credentials.name), AgentStatus(state="joined", moves=(SCALE,)).wire())
        while True:
            for _ in range(VOTES_A_SECOND // BATCHES_A_SECOND):
                await bus.publish(on.vote(credentials.name), nonsense)
            await asyncio.sleep(1 / BATCHES_A_SECOND)


def main(kind: str) -> None:
    clients = {"silencer": Silencer, "starver": Starver, "hopeful": Hopeful}
    asyncio.run(take_part(clients[kind]()) if kind in clients else flood())


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except KeyboardInterrupt:
        sys.exit(130)
