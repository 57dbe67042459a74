"""Appends the learner's messages to the run's log in order and exactly once, even if the server fails."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable
from functools import partial

from oven_core.bus.connection import Bus
from oven_core.bus.streams import LOG_BYTES
from oven_core.errors import BusError
from oven_core.protocol.messages import LearnerMessage, Observation, RunEnded
from oven_core.protocol.names import Subjects
from oven_core.protocol.subjects import learner_subject, patterns_written_by
from oven_core.telemetry import tracing
from oven_core.telemetry.span import Attribute, Span
from oven_learner.link.link_interface import MessageFactory, TracedReceipt, message_id
from oven_learner.link.outbox import BUILD_BATCH, MAX_WAITING_BYTES, LearnerOutbox, OutageLog, QueuedMessage

RETRY_S = 0.25
MAX_RETRY_S = 2.0
"""Initial and maximum pause in seconds before a retry."""
MIN_BATCH = 16
"""Minimum number of messages in a batch. Fewer messages are sent one by one, because a batch makes the server write
files for 2 to 20 ms."""
HEADERS_BYTES = 1024
"""Number of bytes reserved for headers within the log's message limit."""


class LogWriter:
    """Appends the learner's messages, across reconnections, until the log has confirmed them. If the log may already
    have a message, the writer checks this before it sends the message again. Message ids are not enough, because the
    log recognises duplicates only within two minutes."""

    def __init__(
        self,
        run: str,
        secret: bytes,
        contexts: tracing.Contexts,
        outages: OutageLog,
        *,
        max_bytes: int = MAX_WAITING_BYTES,
    ) -> None:
        """Args:
        secret: the key of the message ids.
        contexts: the trace contexts of the decisions that receipts answer.
        outages: logs failed attempts.
        max_bytes: maximum size of the observations that wait during an outage.
        """
        self.closing = False
        """Whether there are no more messages. `run` then ends when everything is sent."""
        self.calls = 0
        """Number of calls to the server that have begun, plus those that have ended. It is odd during a call."""
        self.lost_count = 0
        """Number of observations that never reached the outbox."""
        self.logged_count = 0
        """Number of this learner's observations in the log."""
        self.last_sent = 0
        """The sequence number of this learner's last message in the log."""
        self._run, self._secret, self._contexts, self._outages = run, secret, contexts, outages
        self._subjects = Subjects(run)
        self._outbox = LearnerOutbox(self._build, max_bytes)
        self._new_messages = asyncio.Event()
        self._batch_count = 0

    @property
    def dropped_count(self) -> int:
        """Number of observations that the outbox dropped because it was full."""
        return self._outbox.dropped_count

    @property
    def unsent(self) -> int:
        """Number of messages that the log has not confirmed."""
        return len(self._outbox)

    @property
    def is_finished(self) -> bool:
        return self.closing and not self._outbox

    def put(self, factory: MessageFactory, *, droppable: bool = False) -> None:
        self._outbox.put(factory, droppable)

    def collect(self) -> bool:
        """Build the next few messages. Return whether there may be more."""
        count = self._outbox.collect()
        if count or self.closing:
            self._new_messages.set()
        return count == BUILD_BATCH

    def take_remaining(self) -> list[QueuedMessage]:
        """Return the messages that were not sent, in order, and empty the outbox."""
        return list(self._outbox.take_remaining())

    async def run(self, bus: Bus) -> None:
        """Send the outbox in order. After a failure, check the log before sending more. Returns when the connection is
        lost, or when the writer is closing and everything is sent."""
        must_check, pause = bool(self._outbox.in_flight), RETRY_S
        one_by_one = False
        while not self.is_finished:
            self.calls += 1
            try:
                if must_check:
                    await self._settle_logged(bus)
                    must_check = False
                messages = self._outbox.take()
                if len(messages) < MIN_BATCH or one_by_one:
                    for message in messages:
                        await self._send(bus, message)
                        self.calls += 2  # one call has ended, and the next begins
                else:
                    await self._send_batch(bus, messages)
                one_by_one = False
            except BusError as error:
                if not bus.is_connected:
                    return
                self._outages.record(error, self.unsent)
                must_check = one_by_one = True
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_RETRY_S)
                continue
            finally:
                self.calls += 1
            if messages:
                self._outages.record_recovery(self.dropped_count + self.lost_count)
                pause = RETRY_S
            else:
                self._new_messages.clear()
                await self._new_messages.wait()

    async def own_messages(self, bus: Bus) -> AsyncIterator[LearnerMessage]:
        """Yield this learner's messages after `last_sent`, and advance `last_sent`. They are recognised by their
        message ids, which only this learner can create."""
        head, subjects = await bus.head(self._run), patterns_written_by(self._run, "learner")
        if head > self.last_sent:
            async for event in bus.read(self._run, after=self.last_sent, until=head, subjects=subjects):
                if isinstance(event.body, LearnerMessage) and event.message_id == message_id(event.body, self._secret):
                    self.last_sent = event.seq
                    yield event.body

    async def _send(self, bus: Bus, message: QueuedMessage) -> None:
        with message.span() if message.span else tracing.OFF as span:
            self.last_sent = await bus.append(
                message.subject, message.data, message_id=message.message_id, traceparent=span.traceparent
            )
        self._settle(message.n)

    async def _send_batch(self, bus: Bus, messages: list[QueuedMessage]) -> None:
        with contextlib.ExitStack() as open_spans:
            contexts = [
                open_spans.enter_context(message.span()).traceparent if message.span else "" for message in messages
            ]
            self._batch_count += 1
            self.last_sent = await bus.append_all(
                messages, f"{messages[0].incarnation}-{messages[0].n}-{self._batch_count}", traceparents=contexts
            )
        self._settle(messages[-1].n)

    async def _settle_logged(self, bus: Bus) -> None:
        """Remove the messages in flight that the log already has."""
        if self._outbox.in_flight:
            async for message in self.own_messages(bus):
                self._settle(message.n)

    def _settle(self, n: int) -> None:
        """Remove the messages in flight up to `n`. They are in the log, because messages are sent in order."""
        subject = self._subjects.observation
        self.logged_count += sum(message.n <= n and message.subject == subject for message in self._outbox.in_flight)
        self._outbox.settle(n)

    def _build(self, factory: MessageFactory) -> QueuedMessage:
        """Build a message. Raises ValueError for a message that is larger than the log accepts."""
        message = factory()
        if isinstance(message, RunEnded):
            message = message.model_copy(update={"dropped_observations": self.dropped_count + self.lost_count})
        wire = message.wire()
        if len(wire) > LOG_BYTES - HEADERS_BYTES:
            raise ValueError(
                f"{type(message).__name__} has {len(wire):,} bytes, but the log accepts at most "
                f"{LOG_BYTES - HEADERS_BYTES:,}"
            )
        span = _span_factory(factory, message, self._contexts) if tracing.is_on() else None
        subject, unique_id = learner_subject(self._run, message), message_id(message, self._secret)
        return QueuedMessage(subject, wire, unique_id, message.incarnation, message.n, span)


def _span_factory(factory: object, message: LearnerMessage, contexts: tracing.Contexts) -> Callable[[], Span] | None:
    """Return a function that creates the message's span, or None if it has none. An observation starts a trace, and a
    receipt ends the trace of its decision."""
    if isinstance(message, Observation):
        attributes: dict[str, Attribute] = {"oven.tick": message.tick, "oven.step": message.step}
        return partial(tracing.span, "observe", attributes=attributes, kind="producer")
    if not isinstance(factory, TracedReceipt):
        return None
    receipt = factory.receipt
    attributes = {
        "oven.tick": receipt.tick,
        "oven.actuator": receipt.actuator,
        "oven.decision_id": receipt.decision_id,
        "oven.verdict": "adopted",
        "oven.status": receipt.status,
    }
    parent = contexts.get(receipt.decision_id)
    times = {"began_ns": factory.began_ns, "ended_ns": factory.ended_ns}
    return partial(tracing.span, "apply", parent, attributes, kind="consumer", **times)
