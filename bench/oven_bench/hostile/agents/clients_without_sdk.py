"""Clients without the SDK and without its manners: an agent's key, an agent's two subjects, and votes on them.

`clients_without_sdk.py silencer | starver | flooder`, with the environment that `oven-controller creds add` prints.
"""

from __future__ import annotations

import asyncio
import os
import sys
from pathlib import Path

from oven_core.bus.connection import Bus
from oven_core.bus.nats_client import InlineMessage
from oven_core.protocol.events import UNKNOWN, Event
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

SCALE, ROLLBACK = "optimizer.lr_scale", "run.rollback"
VOTES_A_SECOND = 500
"""Votes that the flooder sends per second: far more than any agent has to say."""
BATCHES_A_SECOND = 10
"""In how many batches per second it sends them."""


class Silencer:
    """Has a ballot open on the learning rate at all times, for a change that it does not believe in itself: as soon as
    one is decided it asks for the next."""

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
    """The same on every knob that there is."""

    KNOBS = None


def half_hearted(spec: ActuatorSpec, tick: int) -> Vote:
    return Vote(actuator=spec.name, stance="propose", value=some_value(spec), tick=tick, confidence=0.01)


def some_value(spec: ActuatorSpec) -> Value:
    """One that the actuator takes: as much as there may be."""
    if spec.kind == "simplex":
        return {name: float(name == spec.choices[0]) for name in spec.choices}
    if spec.kind == "choice":
        return spec.choices[0]
    return 0.0 if spec.name == ROLLBACK else spec.high


async def take_part(client: Silencer) -> None:
    """Until it is ended. What the server drops is lost, and with the next tick it asks again."""
    credentials = Credentials.load(Path(os.environ["OVEN_CREDS"]))
    on, heard = Subjects(os.environ["OVEN_RUN"]), asyncio.Queue[InlineMessage]()
    async with Bus.connect(os.environ["OVEN_URL"], credentials) as bus:
        for subject in (on.run, on.observation, on.decision("*")):
            await bus.subscribe_inline(subject, heard.put_nowait)
        while True:
            message = await heard.get()
            event = Event.from_message(0, message.subject, message.data, UNKNOWN, message.headers)
            for said in client.answer(event.body):
                to = on.vote(credentials.name) if isinstance(said, Vote) else on.agent(credentials.name)
                await bus.publish(to, said.wire())
            await asyncio.sleep(0)  # or a Ctrl-C would wait until all that was heard is answered


async def flood() -> None:
    """500 votes a second on ballots that no one has opened."""
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
    clients = {"silencer": Silencer, "starver": Starver}
    asyncio.run(take_part(clients[kind]()) if kind in clients else flood())


if __name__ == "__main__":
    try:
        main(sys.argv[1])
    except KeyboardInterrupt:
        sys.exit(130)
