"""Append to a run's log, and read it from any sequence number. At the head of the log, readers get new events live."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from functools import partial

from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy

from oven_core.bus.nats_client import BusClient, InlineMessage, delivery
from oven_core.errors import BusError, reason
from oven_core.protocol.events import MESSAGE_ID, SIGNATURE, Event
from oven_core.protocol.names import log_stream
from oven_core.security.signing import Signer
from oven_core.telemetry import tracing

MAX_WAITING = 65_536
"""Maximum number of messages that wait for a reader of the log."""
YIELD_EVERY = 256
"""Number of messages after which a reader yields to other tasks."""
LOOK_S = 0.5
"""Seconds after which a waiting reader checks whether the connection was lost."""


class ReadQueue:
    """A bounded queue between a subscription and one reader. Beyond MAX_WAITING, messages are dropped (a gap)."""

    def __init__(self) -> None:
        self._messages: deque[InlineMessage] = deque()
        self._arrival: asyncio.Future[None] | None = None
        self._count = 0

    def put(self, message: InlineMessage) -> None:
        if len(self._messages) < MAX_WAITING:
            self._messages.append(message)
        if self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)

    async def next(self) -> InlineMessage | None:
        """Return the next message, or None if none arrives within LOOK_S. Waiting costs more than the rest of reading,
        so a pending message is returned at once. Now and then it yields to the connection."""
        self._count += 1
        if self._count % YIELD_EVERY == 0:
            await asyncio.sleep(0)
        if not self._messages:
            loop = asyncio.get_running_loop()
            self._arrival = arrival = loop.create_future()
            timer = loop.call_later(LOOK_S, _done, arrival)
            try:
                await arrival
            finally:
                timer.cancel()
                self._arrival = None
        return self._messages.popleft() if self._messages else None


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


SILENT_S = 3.0
"""Seconds without events and heartbeats after which a reader of the log makes a new consumer."""
BEATS = 5
"""Number of heartbeats (one per second) without an event after which a reader checks the length of the log. After as
many again, it makes a new consumer if it has still not reached that point."""
ACK_S = 2.0
"""Seconds that an append waits for the log's confirmation."""
_WRONG_LAST_SEQUENCE = 10071


@dataclass(slots=True, eq=False)
class Entry:
    """An entry to append. Within the duplicate window, the log does not store a second one with the same message id."""

    subject: str
    data: bytes
    message_id: str


class AlreadyLoggedError(BusError):
    """Raised if the subject already has a message, because another replica was first."""


class LogClient:
    """Appends to runs' logs and reads them. `connection.Bus` adds the connection."""

    def __init__(self, client: BusClient, signer: Signer | None) -> None:
        self.client = client
        self.signer = signer
        """Signs appended messages. Readers verify who may sign what."""
        self.losses = 0
        """Number of lost connections. nats-py reconnects and subscribes again. A plain subscriber misses the
        messages in between, and can request them from `history`."""
        self.closed = asyncio.Event()
        """Set when the connection is closed for good: by `close`, or by an error that ends reconnecting."""

    @property
    def jetstream(self) -> JetStreamContext:
        """The JetStream API on this connection, for streams and consumers."""
        return self.client.jetstream(timeout=2)

    async def publish(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        """Publish without an answer, and without an error if there is no listener. While the server is away, up to 32
        MiB are buffered and sent later. Raises BusError beyond that, or if the connection is closed for good."""
        try:
            await self.client.publish(subject, data, headers=headers)
        except (NatsError, OSError) as error:
            raise BusError(f"{subject} was not published: {error}") from error

    async def append(
        self,
        subject: str,
        data: bytes,
        *,
        message_id: str = "",
        once: bool = False,
        over: int = 0,
        traceparent: str = "",
        signature: str | None = None,
    ) -> int:
        """Append to the log, signed if this connection has credentials; return the sequence.

        `once`: append only if the subject is empty, or has nothing newer than sequence `over`, however old the other
        copy is; otherwise raise AlreadyLoggedError. `signature`: the author's own, to pass on; empty: none. Raises
        BusError if the log did not store it.
        """
        headers = self._stamped(subject, data, message_id, traceparent, signature)
        if once:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(over)
        return await self._confirmed(subject, data, headers)

    async def append_all(self, entries: Sequence[Entry], batch: str, *, traceparents: Sequence[str] = ()) -> int:
        """Append all entries next to each other and in order, or none; return the last one's sequence. At most 1,000.

        They are an atomic batch (nats-architecture-and-design, ADR-50) with the name `batch`, which no other current
        batch may have. If the log already has one of the messages, it refuses all of them. Raises BusError if the log
        did not store them, or did not confirm it, and then may have stored them.
        """
        last = len(entries)
        contexts = traceparents or [""] * last
        for number, (entry, context) in enumerate(zip(entries, contexts, strict=True), 1):
            headers = self._stamped(entry.subject, entry.data, entry.message_id, context)
            headers["Nats-Batch-Id"], headers["Nats-Batch-Sequence"] = batch, str(number)
            if number == last:
                headers["Nats-Batch-Commit"] = "1"
                return await self._confirmed(entry.subject, entry.data, headers, last)
            await self.publish(entry.subject, entry.data, headers)
        raise ValueError("a batch of no messages")

    async def _confirmed(self, subject: str, data: bytes, headers: dict[str, str], batch: int = 0) -> int:
        """Send the last message of a batch of `batch` and return its sequence. Raises AlreadyLoggedError, BusError."""
        try:
            answer = json.loads(await self.client.request_ack(subject, data, headers, ACK_S))
        except NoRespondersError as error:
            raise BusError(
                f"no log takes {subject}: the server's JetStream is off, e.g. because its disk is full, or the run's "
                "streams are not there; nats-server.log says which"
            ) from error
        except (TimeoutError, NatsError, OSError, ValueError) as error:
            raise BusError(f"the log did not confirm {subject}: {reason(error)}") from error
        try:
            refusal = answer.get("error")
            if refusal is None:
                if batch and answer.get("count") != batch:
                    raise BusError("this nats-server does not know atomic batches; 2.12 and newer do")
                return int(answer["seq"])
            code, description = refusal.get("err_code"), refusal.get("description")
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # not an answer of the log
            raise BusError(f"the log did not confirm {subject}: what it answered is none") from error
        if code == _WRONG_LAST_SEQUENCE:
            raise AlreadyLoggedError(f"{subject} is in the log already")
        raise BusError(f"the log refused {subject}: {description} ({code})")

    def _stamped(
        self, subject: str, data: bytes, message_id: str, traceparent: str, signature: str | None = None
    ) -> dict[str, str]:
        """Return the headers of an entry: its trace context, message id and signature."""
        headers = tracing.headers(traceparent) or {}
        if message_id:
            headers[MESSAGE_ID] = message_id
        if signature is None and self.signer is not None:
            signature = self.signer.sign(subject, message_id, data)
        if signature:
            headers[SIGNATURE] = signature
        return headers

    async def head(self, run: str) -> int:
        """Return the log's last sequence. Raises BusError."""
        try:
            info = await self.jetstream.stream_info(log_stream(run))
        except (TimeoutError, NatsError, OSError) as error:
            raise BusError(f"the log of run {run!r} cannot be read: {reason(error)}") from error
        return int(info.state.last_seq)

    async def read(
        self, run: str, *, after: int = 0, until: int | None = None, subjects: list[str] | None = None
    ) -> AsyncGenerator[Event]:
        """Yield the events in the log's order from `after` (exclusive), live at the head, up to sequence `until` if
        given.

        The reader uses a push consumer without acknowledgements. It makes a new one, from the last event on, in four
        cases. The consumer's count has a gap. The connection was lost, and the consumer does not outlive its server.
        Three seconds were silent, although it sends a heartbeat each second. Or only heartbeats arrive while the log
        has more. (In a cluster whose leader is lost or half cut off, a consumer can stop: nats-server issue 5679.) So
        no event is skipped or repeated.
        """
        last, standstill = after, _Standstill(partial(self.head, run), filtered=bool(subjects))
        while until is None or last < until:
            await self._until_connected()
            inbox, losses = self.client.new_inbox(), self.losses
            queue = ReadQueue()
            subscription = await self.client.subscribe_inline(inbox, queue.put)
            try:
                consumer, waiting = await self._consumer(run, inbox, last, subjects)
                if until is not None and not waiting:
                    return  # the filter lets nothing through, and no message would say so
                expected = 1
                standstill.reset()
                while until is None or last < until:
                    message = await self._next(queue, losses)
                    if message is None:
                        break
                    if not message.reply.startswith("$JS.ACK."):
                        # A heartbeat has the consumer's last delivery, which shows a lost tail.
                        delivered = int((message.headers or {}).get("Nats-Last-Consumer", 0))
                        if delivered >= expected or await standstill.after_heartbeat(last):
                            break
                        continue
                    standstill.reset()
                    meta = delivery(message.reply)
                    if meta.sequence.consumer != expected:
                        break
                    expected += 1
                    last = meta.sequence.stream
                    if until is not None and last > until:
                        return
                    context = tracing.context_of(message.headers)
                    stored = meta.timestamp
                    yield Event.from_message(last, message.subject, message.data, stored, message.headers, context)
                    if until is not None and meta.num_pending == 0:
                        return
                with contextlib.suppress(NatsError, OSError, asyncio.TimeoutError):
                    await self.jetstream.delete_consumer(log_stream(run), consumer)
            except (TimeoutError, BusError, NatsError, OSError):
                await asyncio.sleep(0.25)
            finally:
                with contextlib.suppress(NatsError, OSError):
                    await subscription.unsubscribe()

    async def _next(self, queue: ReadQueue, losses: int) -> InlineMessage | None:
        """Return the next message; None if none came for SILENT_S, or if the connection was lost since `losses`."""
        silent_s = 0.0
        while (message := await queue.next()) is None:
            silent_s += LOOK_S
            if silent_s >= SILENT_S or self.losses != losses or self.client.is_closed:
                return None
        return message

    async def _until_connected(self) -> None:
        while not self.client.is_connected:
            if self.client.is_closed or self.closed.is_set():
                raise BusError("the connection was closed while the log was read")
            await asyncio.sleep(0.05)

    async def _consumer(self, run: str, inbox: str, after: int, subjects: list[str] | None) -> tuple[str, int]:
        """Create a consumer; return its name and its number of pending messages."""
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


class _Standstill:
    """Detects a consumer that sends only heartbeats although the log has unread events."""

    def __init__(self, head: Callable[[], Awaitable[int]], *, filtered: bool) -> None:
        self._ask, self._filtered = head, filtered
        self._beats = self._head = self._retried_head = 0

    def reset(self) -> None:
        """Restart the count, after a new consumer or an event."""
        self._beats = self._head = 0

    async def after_heartbeat(self, last: int) -> bool:
        """Return whether the consumer has stopped, having delivered up to sequence `last`."""
        self._beats += 1
        if self._beats % BEATS == 0:
            if self._head > max(last, self._retried_head):
                # A filter may let nothing through up to the head, so one new consumer is enough.
                self._retried_head = self._head if self._filtered else 0
                return True
            with contextlib.suppress(BusError):
                self._head = await self._ask()
        return False
