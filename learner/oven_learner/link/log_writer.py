"""Appends the learner's messages to the run's log exactly once and in order, even if the server fails."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import AsyncIterator, Callable
from functools import partial

from oven_core.bus.connection import Bus
from oven_core.bus.streams import LOG_BYTES
from oven_core.errors import BusError, OvenError, reason
from oven_core.protocol.messages import LearnerMessage, Observation, RunEnded
from oven_core.protocol.names import Subjects
from oven_core.protocol.subjects import learner_subject, patterns_by
from oven_core.telemetry import tracing
from oven_core.telemetry.span import Attribute, Span
from oven_learner.link.link_interface import Make, TracedReceipt, message_id
from oven_learner.link.outbox import AT_ONCE, KEPT_BYTES, Outbox, QueuedMessage

log = logging.getLogger("oven.learner")

RETRY_S = 0.25
RETRY_MOST_S = 2.0
BATCH_FROM = 16
"""Minimum number of messages for a batch. Fewer are faster one by one, because a batch makes the server write files for
2 to 20 ms."""
HEADERS_BYTES = 1024
"""Reserved below the log's limit on a message."""
REPEAT_S = 60.0
"""Seconds after which a reason for an outage is logged again."""


class OutageLog:
    """Logs why the log accepts no messages: each reason once, and again after a minute."""

    def __init__(self) -> None:
        self._began = self._logged_at = 0.0
        self._logged_reasons: set[str] = set()

    def record(self, error: BaseException, waiting: int) -> None:
        """Record a failed attempt and the number of waiting messages."""
        now, why = time.monotonic(), reason(error)
        self._began = self._began or now
        if why not in self._logged_reasons or now >= self._logged_at + REPEAT_S:
            self._logged_reasons.add(why)
            self._logged_at = now
            since = now - self._began
            trace = None if isinstance(error, OvenError) else error  # a bug of ours
            log.warning("%s (for %.0f s; %d messages wait); training continues", why, since, waiting, exc_info=trace)

    def recovered(self, dropped: int) -> None:
        if self._began:
            since = time.monotonic() - self._began
            log.warning("the log takes messages again after %.1f s; %d observations were dropped", since, dropped)
            self._began, self._logged_reasons = 0.0, set()


class LogWriter:
    """Appends the learner's messages, across successive connections, until the log has confirmed them.

    If it is unknown whether the log has a message, the writer asks the log before it sends the message again. Message
    ids alone are not enough, because the log stores a copy again after its duplicate window of two minutes.
    """

    def __init__(
        self, run: str, secret: bytes, contexts: tracing.Contexts, outages: OutageLog, *, kept_bytes: int = KEPT_BYTES
    ) -> None:
        """`secret` makes the message ids. `contexts`: the trace contexts of the decisions that receipts answer."""
        self.closing = False
        """Whether no more messages will come. `run` then ends when everything is sent."""
        self.calls = 0
        """Starts plus ends of calls to the server: odd while a call is running."""
        self.lost = 0
        """Observations that never got into the outbox."""
        self.logged = 0
        """This learner's observations in the log."""
        self.last_sent = 0
        """The sequence of this learner's last message in the log."""
        self._run, self._secret, self._contexts, self._outages = run, secret, contexts, outages
        self._subjects = Subjects(run)
        self._outbox = Outbox(self._build, kept_bytes)
        self._new_messages = asyncio.Event()
        self._batches = 0

    @property
    def dropped(self) -> int:
        """Observations that the outbox dropped because it was full."""
        return self._outbox.dropped

    @property
    def unsent(self) -> int:
        return len(self._outbox)

    @property
    def finished(self) -> bool:
        return self.closing and not self._outbox

    def put(self, make: Make, *, droppable: bool = False) -> None:
        self._outbox.put(make, droppable)

    def collect(self) -> bool:
        """Build the next few messages. Return True if there may be more."""
        count = self._outbox.collect()
        if count or self.closing:
            self._new_messages.set()
        return count == AT_ONCE

    def take_rest(self) -> list[QueuedMessage]:
        """Return the messages that the log did not take, in order. Nothing can be sent after that."""
        return list(self._outbox.take_rest())

    async def run(self, bus: Bus) -> None:
        """Send the outbox in order. After a failure, ask the log before sending more.

        Returns when the connection is lost, or when the writer is closing and everything is sent.
        """
        unsure, pause = bool(self._outbox.in_flight), RETRY_S
        one_by_one = False
        while not self.finished:
            self.calls += 1
            try:
                if unsure:
                    await self._ask(bus)
                    unsure = False
                messages = self._outbox.take()
                if len(messages) < BATCH_FROM or one_by_one:
                    for message in messages:
                        await self._send(bus, message)
                        self.calls += 2
                else:
                    await self._send_batch(bus, messages)
                one_by_one = False
            except BusError as error:
                if not bus.connected:
                    return
                self._outages.record(error, self.unsent)
                unsure = one_by_one = True
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_MOST_S)
                continue
            finally:
                self.calls += 1
            if messages:
                self._outages.recovered(self.dropped + self.lost)
                pause = RETRY_S
            else:
                self._new_messages.clear()
                await self._new_messages.wait()

    async def own_messages(self, bus: Bus) -> AsyncIterator[LearnerMessage]:
        """Yield this learner's messages after `last_sent`, and advance it.

        They are recognised by their message ids, which only this learner can make.
        """
        head, subjects = await bus.head(self._run), patterns_by(self._run, "learner")
        if head > self.last_sent:
            async for event in bus.read(self._run, after=self.last_sent, until=head, subjects=subjects):
                if isinstance(event.body, LearnerMessage) and event.message_id == self._message_id(event.body):
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
            self._batches += 1
            self.last_sent = await bus.append_all(
                messages,
                f"{messages[0].incarnation}-{messages[0].n}-{self._batches}",
                traceparents=contexts,
            )
        self._settle(messages[-1].n)

    async def _ask(self, bus: Bus) -> None:
        """Settle the messages in flight that the log has. They were sent in order, so the last one speaks for all."""
        if self._outbox.in_flight:
            async for message in self.own_messages(bus):
                self._settle(message.n)

    def _settle(self, n: int) -> None:
        subject = self._subjects.observation
        self.logged += sum(message.n <= n and message.subject == subject for message in self._outbox.in_flight)
        self._outbox.settle(n)

    def _build(self, make: Make) -> QueuedMessage:
        """Raises ValueError for a message that the log would never take."""
        message = make()
        if isinstance(message, RunEnded):
            message = message.model_copy(update={"dropped_observations": self.dropped + self.lost})
        wire = message.wire()
        if len(wire) > LOG_BYTES - HEADERS_BYTES:
            raise ValueError(f"{type(message).__name__} of {len(wire):,} bytes; the log accepts at most {LOG_BYTES:,}")
        span = _span_of(make, message, self._contexts) if tracing.on() else None
        subject = learner_subject(self._run, message)
        return QueuedMessage(subject, wire, self._message_id(message), message.incarnation, message.n, span)

    def _message_id(self, message: LearnerMessage) -> str:
        return message_id(message, self._secret)


def _span_of(make: object, message: LearnerMessage, contexts: tracing.Contexts) -> Callable[[], Span] | None:
    """Return a function that makes the message's span: an observation starts a trace, a receipt ends its decision's
    trace."""
    if isinstance(message, Observation):
        attributes: dict[str, Attribute] = {"oven.tick": message.tick, "oven.step": message.step}
        return partial(tracing.span, "observe", attributes=attributes, kind="producer")
    if not isinstance(make, TracedReceipt):
        return None
    receipt = make.receipt
    attributes = {
        "oven.tick": receipt.tick,
        "oven.actuator": receipt.actuator,
        "oven.decision_id": receipt.decision_id,
        "oven.verdict": "adopted",
        "oven.status": receipt.status,
    }
    parent = contexts.get(receipt.decision_id)
    times = {"began_ns": make.began_ns, "ended_ns": make.ended_ns}
    return partial(tracing.span, "apply", parent, attributes, kind="consumer", **times)
