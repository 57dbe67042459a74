"""What an agent says on its way to the bus: proposals get the graph's sources, votes their place in a trace."""

from __future__ import annotations

import logging
import time
from collections.abc import Sequence

from oven_agents.prior import Prior
from oven_agents.session import Session
from oven_controller import telemetry
from oven_controller.bus import Bus
from oven_controller.errors import BusError
from oven_controller.messages import AgentStatus, BallotOpened, Body, Observation, Vote
from oven_controller.names import Subjects
from oven_controller.wire import Malformed

log = logging.getLogger("oven.agent")


class Speech:
    def __init__(self, session: Session, bus: Bus, on: Subjects) -> None:
        self._session, self._bus, self._on = session, bus, on
        self._prior = Prior(bus)
        self._contexts = telemetry.Contexts()

    def heard(self, body: Body | Malformed, traceparent: str) -> None:
        """Remember the trace that a message belongs to, by what votes name it by: an answer its ballot, any other vote
        the tick that its window ends with."""
        if isinstance(body, Observation | BallotOpened):
            self._contexts.keep(body.id if isinstance(body, BallotOpened) else str(body.tick), traceparent)

    async def react(self) -> None:
        """Have the agent vote, and say it."""
        began_ns = time.time_ns()
        session = self._session
        said = await self._prior.considered(session.react(), session.run, session.knobs, session.in_flight)
        await self.say(said, began_ns)

    async def say(self, messages: Sequence[Vote | AgentStatus], began_ns: int | None = None) -> None:
        """Publish. What cannot be said is dropped: the next tick asks for other words."""
        name = self._session.name
        for message in messages:
            subject = self._on.vote(name) if isinstance(message, Vote) else self._on.agent(name)
            if isinstance(message, Vote):
                log.info("%s %s %s: %s", message.stance, message.actuator, message.value, message.rationale)
            with self._span(message, began_ns) as span:
                try:
                    await self._bus.publish(subject, message.wire(), telemetry.headers(span.traceparent))
                except BusError as error:
                    log.warning("%s", error)

    def _span(self, message: Vote | AgentStatus, began_ns: int | None) -> telemetry.Span:
        """A vote's, from the question to the agent on. Statuses have none."""
        if not isinstance(message, Vote):
            return telemetry.OFF
        attributes: dict[str, telemetry.Attribute] = {
            "oven.agent": self._session.name,
            "oven.tick": message.tick,
            "oven.actuator": message.actuator,
            "oven.stance": message.stance,
        }
        parent = self._contexts.get(message.ballot) or self._contexts.get(str(message.tick))
        return telemetry.span("vote", parent, attributes, kind="consumer", began_ns=began_ns)
