"""What an agent says on its way to the bus: proposals get the graph's sources, votes their place in a trace."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from oven_agents.runtime.kg_client import Prior, Said
from oven_agents.sdk.session import Session
from oven_core.bus.connection import Bus
from oven_core.errors import BusError
from oven_core.protocol.alerts import Alert
from oven_core.protocol.messages import AgentStatus, BallotOpened, Observation, Vote
from oven_core.protocol.subjects import agent_subject
from oven_core.telemetry import tracing
from oven_core.telemetry.span import Attribute, Span

log = logging.getLogger("oven.agent")


def trace_key(body: Observation | BallotOpened) -> str:
    """What votes name the trace of a message by: an answer its ballot, any other vote the tick that its window ends
    with."""
    return body.id if isinstance(body, BallotOpened) else str(body.tick)


async def react(publishers: Sequence[Publisher]) -> None:
    """Have every agent vote, then say it all: a question to the graph holds up no one else's words."""
    began_ns = time.time_ns()
    said = [(publisher, messages) for publisher in publishers if (messages := publisher.session.react())]
    if len(said) == 1:  # without a task of its own, which costs a turn of the loop
        publisher, messages = said[0]
        await publisher.consider(messages, began_ns)
    elif said:
        await asyncio.gather(*(publisher.consider(messages, began_ns) for publisher, messages in said))


class Publisher:
    """Publishes what one agent says. `contexts` holds, by `trace_key`, the traces that the process has heard of."""

    def __init__(self, session: Session, bus: Bus, run: str, prior: Prior, contexts: tracing.Contexts) -> None:
        self.session = session
        self._bus, self._run, self._prior, self._contexts = bus, run, prior, contexts

    async def consider(self, messages: Sequence[Said], began_ns: int) -> None:
        """Say it with what the graph has to say about it."""
        session = self.session
        said = await self._prior.considered(messages, session.run, session.knobs, session.in_flight)
        await self.say(said, began_ns)

    async def say(self, messages: Sequence[Vote | AgentStatus | Alert], began_ns: int | None = None) -> None:
        """Publish, and note down the votes once they are on their way. What cannot be said is dropped: the next tick
        asks for other words."""
        name = self.session.name
        for message in messages:
            subject = agent_subject(self._run, name, message)
            with self._span(message, began_ns) as span:
                try:
                    await self._bus.publish(subject, message.wire(), tracing.headers(span.traceparent))
                except BusError as error:
                    log.warning("%s", error)
            if isinstance(message, AgentStatus) and message.state == "notice":
                log.info("%s: %s", name, message.reason)
            elif isinstance(message, Alert):
                log.info("%s: %s %s: %s", name, message.symptom, message.state, message.reason)
        votes = [message for message in messages if isinstance(message, Vote)]
        if votes:
            await asyncio.sleep(0)  # the client sends in a task of its own
        for vote in votes:
            log.info("%s: %s %s %s: %s", name, vote.stance, vote.actuator, vote.value, vote.rationale)

    def _span(self, message: Vote | AgentStatus | Alert, began_ns: int | None) -> Span:
        """A vote's, from the question to the agent on. Statuses and alerts have none."""
        if not isinstance(message, Vote):
            return tracing.OFF
        attributes: dict[str, Attribute] = {
            "oven.agent": self.session.name,
            "oven.tick": message.tick,
            "oven.actuator": message.actuator,
            "oven.stance": message.stance,
        }
        parent = self._contexts.get(message.ballot) or self._contexts.get(str(message.tick))
        return tracing.span("vote", parent, attributes, kind="consumer", began_ns=began_ns)
