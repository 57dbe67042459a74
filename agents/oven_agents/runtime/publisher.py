"""Publishes an agent's messages: proposals with the graph's sources, votes with their place in a trace."""

from __future__ import annotations

import asyncio
import logging
import time
from collections.abc import Sequence

from oven_agents.runtime.kg_client import PriorClient
from oven_agents.sdk.alternative_plans import UnsentMessage
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
    """Return the key of a message's trace: a ballot's id, or the observation's tick. A vote on a ballot names the
    ballot, and any other vote the tick at which its window ends."""
    return body.id if isinstance(body, BallotOpened) else str(body.tick)


async def react(publishers: Sequence[Publisher]) -> None:
    """Ask every agent to vote, then publish all messages. A question to the graph delays only the agent that asks."""
    began_ns = time.time_ns()
    replies = [(publisher, messages) for publisher in publishers if (messages := publisher.session.react())]
    if len(replies) == 1:  # no task, which would cost a turn of the event loop
        publisher, messages = replies[0]
        await publisher.consult_and_publish(messages, began_ns)
    elif replies:
        await asyncio.gather(*(publisher.consult_and_publish(messages, began_ns) for publisher, messages in replies))


class Publisher:
    """Publishes the messages of one agent."""

    def __init__(self, session: Session, bus: Bus, run: str, prior: PriorClient, contexts: tracing.Contexts) -> None:
        """`contexts` holds the traces that the process knows, by `trace_key`."""
        self.session = session
        self._bus, self._run, self._prior, self._contexts = bus, run, prior, contexts

    async def consult_and_publish(self, messages: Sequence[UnsentMessage], began_ns: int) -> None:
        """Publish after asking the graph. `began_ns` is when the agent was asked, in Unix nanoseconds."""
        session = self.session
        resolved = await self._prior.consult(messages, session.run, session.knobs, session.in_flight)
        await self.publish(resolved, began_ns)

    async def publish(self, messages: Sequence[Vote | AgentStatus | Alert], began_ns: int | None = None) -> None:
        """Publish, then log the votes. A message that cannot be sent is dropped, because the next tick brings new
        ones."""
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
            await asyncio.sleep(0)  # lets the client's own task send them first
        for vote in votes:
            log.info("%s: %s %s %s: %s", name, vote.stance, vote.actuator, vote.value, vote.rationale)

    def _span(self, message: Vote | AgentStatus | Alert, began_ns: int | None) -> Span:
        """A vote's span, which begins when the agent was asked. Statuses and alerts have none."""
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
