"""What the learner appends to its run's log: everything once and in order, whatever the server does meanwhile."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator

from oven_core.bus.connection import Bus
from oven_core.bus.streams import LOG_BYTES
from oven_core.errors import BusError
from oven_core.protocol.messages import LearnerMessage, RunEnded
from oven_core.protocol.names import Subjects
from oven_core.protocol.subjects import learner_subject, patterns_by
from oven_core.telemetry import tracing
from oven_learner.link import spans
from oven_learner.link.link_interface import Make, message_id
from oven_learner.link.outage_log import OutageLog
from oven_learner.link.outbox import AT_ONCE, KEPT_BYTES, Outbox, QueuedMessage

RETRY_S = 0.25
RETRY_MOST_S = 2.0
BATCH_FROM = 16
"""So many messages go as one batch; fewer are there sooner one by one (a batch costs the server files: 2 to 20 ms)."""
HEADERS_BYTES = 1024
"""Left free below the log's limit on a message."""


class LogWriter:
    """Appends the learner's messages, over one connection after another, until the log has confirmed them.

    When it is not known whether the log took something, the log is asked before it is sent again. (Message ids alone
    would not do: a copy is stored again once the duplicate window of two minutes is over.)
    """

    def __init__(
        self, run: str, secret: bytes, contexts: tracing.Contexts, outages: OutageLog, *, kept_bytes: int = KEPT_BYTES
    ) -> None:
        """`secret`: message ids are made with it. `contexts`: of the decisions that receipts answer."""
        self.closing = False
        """Nothing more will come: `run` ends once everything is sent."""
        self.calls = 0
        """Of the server, so far; odd: one is under way."""
        self.lost = 0
        """Observations that never got into the outbox."""
        self.logged = 0
        """This learner's observations in the log."""
        self.last_sent = 0
        """The sequence of its last message in the log."""
        self._run, self._secret, self._contexts, self._outages = run, secret, contexts, outages
        self._on = Subjects(run)
        self._outbox = Outbox(self._write, kept_bytes)
        self._more = asyncio.Event()
        self._batches = 0

    @property
    def dropped(self) -> int:
        """Observations that the outbox had no room for."""
        return self._outbox.dropped

    @property
    def unsent(self) -> int:
        """Messages that the log has not confirmed."""
        return len(self._outbox)

    @property
    def finished(self) -> bool:
        return self.closing and not self._outbox

    def put(self, make: Make, *, droppable: bool = False) -> None:
        """The learner's next message; `collect` makes it."""
        self._outbox.put(make, droppable)

    def collect(self) -> bool:
        """Make the next few messages. True: there may be more of them."""
        made = self._outbox.collect()
        if made or self.closing:
            self._more.set()
        return made == AT_ONCE

    def rest(self) -> list[QueuedMessage]:
        """What the log did not take, in its order. Nothing can be sent after that."""
        return list(self._outbox.rest())

    async def run(self, bus: Bus) -> None:
        """Send what the outbox has, in order; the first failure stops the rest until the log has been asked. Comes back
        when the connection is lost, or when it is closing and everything is sent."""
        unsure, pause = bool(self._outbox.flying), RETRY_S
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
                    await self._send_all(bus, messages)
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
                self._more.clear()
                await self._more.wait()

    async def own_messages(self, bus: Bus) -> AsyncIterator[LearnerMessage]:
        """This learner's messages behind the last that it knows to be in the log, which moves on with them. They are
        known by their message ids: no one else can make those, whatever says that it is of this learner."""
        head, wanted = await bus.head(self._run), patterns_by(self._run, "learner")
        if head > self.last_sent:
            async for event in bus.read(self._run, after=self.last_sent, until=head, subjects=wanted):
                if isinstance(event.body, LearnerMessage) and event.message_id == self._message_id(event.body):
                    self.last_sent = event.seq
                    yield event.body

    async def _send(self, bus: Bus, message: QueuedMessage) -> None:
        with message.span() if message.span else tracing.OFF as span:
            self.last_sent = await bus.append(
                message.subject, message.data, message_id=message.message_id, traceparent=span.traceparent
            )
        self._settle(message.n)

    async def _send_all(self, bus: Bus, messages: list[QueuedMessage]) -> None:
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
        """Settle what the log has of what is under way. It went there in order: the last one found speaks for all."""
        if self._outbox.flying:
            async for message in self.own_messages(bus):
                self._settle(message.n)

    def _settle(self, n: int) -> None:
        """The log has everything up to the learner's message `n`."""
        flying, observations = self._outbox.flying, self._on.observation
        self.logged += sum(message.n <= n and message.subject == observations for message in flying)
        self._outbox.settle(n)

    def _write(self, make: Make) -> QueuedMessage:
        """Raises ValueError for what the log would never take."""
        message = make()
        if isinstance(message, RunEnded):
            message = message.model_copy(update={"dropped_observations": self.dropped + self.lost})
        wire = message.wire()
        if len(wire) > LOG_BYTES - HEADERS_BYTES:
            raise ValueError(f"a {type(message).__name__} of {len(wire):,} bytes; the log takes {LOG_BYTES:,}")
        span = spans.of(make, message, self._contexts) if tracing.on() else None
        where, named = learner_subject(self._run, message), self._message_id(message)
        return QueuedMessage(where, wire, named, message.incarnation, message.n, span)

    def _message_id(self, message: LearnerMessage) -> str:
        return message_id(message, self._secret)
