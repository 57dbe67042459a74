"""Read a run's log from any sequence number, and receive new events as they are appended."""

from __future__ import annotations

import asyncio
import contextlib
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from functools import partial

from nats.errors import Error as NatsError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from oven_core.bus.nats_client import BusClient, InlineMessage, delivery
from oven_core.errors import BusError, reason
from oven_core.protocol.events import Event
from oven_core.protocol.names import log_stream
from oven_core.telemetry import tracing

MAX_QUEUED = 65_536
"""Maximum number of messages that wait for a reader of the log."""
YIELD_INTERVAL = 256
"""Number of messages after which a reader yields to other tasks."""
POLL_S = 0.5
"""Seconds between a waiting reader's checks of whether the connection was lost."""
MAX_SILENCE_S = 3.0
"""Seconds without an event or a heartbeat after which a reader creates a new consumer."""
HEAD_CHECK_HEARTBEATS = 5
"""Number of heartbeats (one per second) without an event after which a reader looks up the log's last sequence number.
If the reader is still behind after the same number of heartbeats again, it creates a new consumer."""


class ReadQueue:
    """A bounded queue between a subscription and one reader. Messages beyond MAX_QUEUED are dropped and leave a gap."""

    def __init__(self) -> None:
        self._messages: deque[InlineMessage] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._count = 0

    def put(self, message: InlineMessage) -> None:
        if len(self._messages) < MAX_QUEUED:
            self._messages.append(message)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def next(self) -> InlineMessage | None:
        """Return the next message, or None if none arrives within POLL_S.

        A queued message is returned without waiting, because waiting is the most expensive part of reading. Other tasks
        get a turn only every YIELD_INTERVAL messages."""
        self._count += 1
        if self._count % YIELD_INTERVAL == 0:
            await asyncio.sleep(0)
        if not self._messages:
            loop = asyncio.get_running_loop()
            self._arrival = arrival = loop.create_future()
            timer = loop.call_later(POLL_S, _wake, arrival)
            try:
                await arrival
            finally:
                timer.cancel()
                self._arrival = None
        return self._messages.popleft() if self._messages else None


def _wake(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


class LogReader:
    """Reads runs' logs over a connection."""

    def __init__(self, client: BusClient) -> None:
        self.client = client
        self.disconnects = 0
        """Number of times that the connection was lost. nats-py then reconnects and subscribes again, but a subscriber
        misses the messages in between. It can request them on `history`."""
        self.closed = asyncio.Event()
        """Set when the connection is closed for good, either by `close` or by an error that ends reconnecting."""

    @property
    def jetstream(self) -> JetStreamContext:
        """The JetStream API on this connection, for streams and consumers."""
        return self.client.jetstream(timeout=2)

    async def head(self, run: str) -> int:
        """Return the last sequence number of the log. Raises BusError."""
        try:
            info = await self.jetstream.stream_info(log_stream(run))
        except (TimeoutError, NatsError, OSError) as error:
            raise BusError(f"the log of run {run!r} cannot be read: {reason(error)}") from error
        return int(info.state.last_seq)

    async def read(
        self, run: str, *, after: int = 0, until: int | None = None, subjects: list[str] | None = None
    ) -> AsyncGenerator[Event]:
        """Yield the events after the sequence number `after` in order, up to `until`, or forever if it is None.

        No event is skipped or repeated. The reader uses a push consumer without acknowledgements. It creates a new one
        that starts after the last event if there is a gap in the consumer's count, if the connection was lost, if it
        receives nothing for MAX_SILENCE_S, or if it receives only heartbeats although the log has more events. The last
        case occurs in a cluster whose leader is lost or partly isolated (nats-server issue 5679)."""
        last, stall_detector = after, _StallDetector(partial(self.head, run), filtered=bool(subjects))
        while until is None or last < until:
            await self._wait_until_connected()
            inbox, disconnects = self.client.new_inbox(), self.disconnects
            queue = ReadQueue()
            subscription = await self.client.subscribe_inline(inbox, queue.put)
            try:
                consumer, waiting = await self._create_consumer(run, inbox, last, subjects)
                if until is not None and not waiting:
                    return  # no event matches the filter, so no message will arrive
                next_number = 1
                stall_detector.reset()
                while until is None or last < until:
                    message = await self._next_message(queue, disconnects)
                    if message is None:
                        break
                    if not message.reply.startswith("$JS.ACK."):
                        # A heartbeat states the number of delivered messages. It shows whether the last ones were lost.
                        delivered = int((message.headers or {}).get("Nats-Last-Consumer", 0))
                        if delivered >= next_number or await stall_detector.on_heartbeat(last):
                            break
                        continue
                    stall_detector.reset()
                    meta = delivery(message.reply)
                    if meta.sequence.consumer != next_number:
                        break
                    next_number += 1
                    last = meta.sequence.stream
                    if until is not None and last > until:
                        return
                    context = tracing.context_of(message.headers)
                    stored_at = meta.timestamp
                    yield Event.from_message(last, message.subject, message.data, stored_at, message.headers, context)
                    if until is not None and meta.num_pending == 0:
                        return
                with contextlib.suppress(NatsError, OSError, asyncio.TimeoutError):
                    await self.jetstream.delete_consumer(log_stream(run), consumer)
            except (TimeoutError, BusError, NatsError, OSError):
                await asyncio.sleep(0.25)
            finally:
                with contextlib.suppress(NatsError, OSError):
                    await subscription.unsubscribe()

    async def _next_message(self, queue: ReadQueue, disconnects: int) -> InlineMessage | None:
        """Return the next message, or None after MAX_SILENCE_S or if `self.disconnects` differs from `disconnects`."""
        silent_s = 0.0
        while (message := await queue.next()) is None:
            silent_s += POLL_S
            if silent_s >= MAX_SILENCE_S or self.disconnects != disconnects or self.client.is_closed:
                return None
        return message

    async def _wait_until_connected(self) -> None:
        while not self.client.is_connected:
            if self.client.is_closed or self.closed.is_set():
                raise BusError("the connection was closed while reading the log")
            await asyncio.sleep(0.05)

    async def _create_consumer(self, run: str, inbox: str, after: int, subjects: list[str] | None) -> tuple[str, int]:
        """Create a consumer, and return its name and its number of pending messages."""
        config = ConsumerConfig(
            deliver_subject=inbox,
            deliver_policy=DeliverPolicy.BY_START_SEQUENCE,
            opt_start_seq=after + 1,
            ack_policy=AckPolicy.NONE,
            idle_heartbeat=1.0,
            inactive_threshold=10.0,
            mem_storage=True,
            num_replicas=1,
            filter_subjects=subjects,
        )
        info = await self.jetstream.add_consumer(log_stream(run), config)
        return str(info.name), info.num_pending or 0


class _StallDetector:
    """Detects a consumer that sends only heartbeats although the log has unread events."""

    def __init__(self, head: Callable[[], Awaitable[int]], *, filtered: bool) -> None:
        self._read_head, self._filtered = head, filtered
        self._heartbeats = 0  # since the newest event
        self._head = 0  # last sequence number of the log at the newest check
        self._retried_head = 0  # head for which a new consumer was created

    def reset(self) -> None:
        """Restart the count. Call this after an event and for a new consumer."""
        self._heartbeats = self._head = 0

    async def on_heartbeat(self, last: int) -> bool:
        """Count a heartbeat, and return whether the consumer has stopped after delivering sequence number `last`."""
        self._heartbeats += 1
        if self._heartbeats % HEAD_CHECK_HEARTBEATS == 0:
            if self._head > max(last, self._retried_head):
                # With a filter, perhaps no event up to the head matches. So retry only once for this head.
                self._retried_head = self._head if self._filtered else 0
                return True
            with contextlib.suppress(BusError):
                self._head = await self._read_head()
        return False
