"""A run's log over one connection: append to it, and read it from any sequence on, live at its head."""

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

AHEAD = 65_536
"""Messages that wait for a reader of the log."""
TURN = 256
"""After so many the reader lets others have their turn."""
LOOK_S = 0.5
"""How long a reader waits before it looks whether the connection was lost meanwhile."""


class ReadQueue:
    """Messages for one reader of the log. Beyond AHEAD they are dropped, which the reader sees as a gap."""

    def __init__(self) -> None:
        self._messages: deque[InlineMessage] = deque()
        self._news: asyncio.Future[None] | None = None
        self._taken = 0

    def put(self, message: InlineMessage) -> None:
        if len(self._messages) < AHEAD:
            self._messages.append(message)
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def next(self) -> InlineMessage | None:
        """None if nothing came within LOOK_S. To wait costs more than all the rest of reading, so no one waits for what
        is there; but now and then the connection has its turn."""
        self._taken += 1
        if self._taken % TURN == 0:
            await asyncio.sleep(0)
        if not self._messages:
            loop = asyncio.get_running_loop()
            self._news = news = loop.create_future()
            timer = loop.call_later(LOOK_S, _done, news)
            try:
                await news
            finally:
                timer.cancel()
                self._news = None
        return self._messages.popleft() if self._messages else None


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)


SILENT_S = 3.0
"""A reader of the log that hears neither events nor heartbeats for so long makes a new consumer."""
BEATS = 5
"""After so many heartbeats, a second apart, with no event between, a reader asks how long the log is; after so many
more it makes a new consumer if it still has not read as far."""
ACK_S = 2.0
"""How long an append waits for the log's word."""
_WRONG_LAST_SEQUENCE = 10071


@dataclass(slots=True, eq=False)
class Entry:
    """What is to be appended to the log. With a message id, a copy within the log's duplicate window is not stored;
    without one (empty) it is."""

    subject: str
    data: bytes
    message_id: str


class AlreadyLoggedError(BusError):
    """The subject holds a message already (another replica was first)."""


class LogClient:
    """Appends to runs' logs and reads them; `connection.Bus` is one, and makes the connection."""

    def __init__(self, client: BusClient, signer: Signer | None) -> None:
        self.client = client
        self.signer = signer
        """Signs what is appended; who may sign what, its readers verify."""
        self.losses = 0
        """Times that the connection was lost. nats-py makes it anew and subscribes again; what was said meanwhile to a
        plain subscriber is lost to it, and anyone who needs it asks `history`."""
        self.closed = asyncio.Event()
        """Set when it is closed for good: by `close`, or by an error after which nats-py does not try again."""

    @property
    def jetstream(self) -> JetStreamContext:
        """JetStream's own API on this connection, for streams and consumers."""
        return self.client.jetstream(timeout=2)

    async def publish(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        """Core publish: no answer, and no error if no one listens. While the server is away it is kept, up to 32 MiB,
        and sent when it is back. Raises BusError beyond that, or when the connection is closed for good."""
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
        """Append to the log, signed if this connection has credentials, and return the sequence. `once`: only if the
        subject is still empty, or holds nothing newer than sequence `over` (AlreadyLoggedError otherwise), however long
        ago the other copy came. `signature`: its author's own, for who passes it on; empty: it has none. Raises
        BusError when the log did not take it."""
        headers = self._stamped(subject, data, message_id, traceparent, signature)
        if once:
            headers["Nats-Expected-Last-Subject-Sequence"] = str(over)
        return await self._confirmed(subject, data, headers)

    async def append_all(self, entries: Sequence[Entry], batch: str, *, traceparents: Sequence[str] = ()) -> int:
        """Append all of them, next to each other and in order, or none; return the last one's sequence. At most 1,000.

        An atomic batch (nats-architecture-and-design, ADR-50) by the name `batch`, which no other that is under way may
        have. One message that the log has already makes it refuse all of them. Raises BusError when it did not take
        them, or did not say so: then it may have.
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
        """Send it and wait for the log's word: the sequence. `batch`: it ends one of so many. Raises AlreadyLoggedError
        and BusError."""
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
            code, words = refusal.get("err_code"), refusal.get("description")
        except (AttributeError, KeyError, TypeError, ValueError) as error:  # something came in an answer's place
            raise BusError(f"the log did not confirm {subject}: what it answered is none") from error
        if code == _WRONG_LAST_SEQUENCE:
            raise AlreadyLoggedError(f"{subject} is in the log already")
        raise BusError(f"the log refused {subject}: {words} ({code})")

    def _stamped(
        self, subject: str, data: bytes, message_id: str, traceparent: str, signature: str | None = None
    ) -> dict[str, str]:
        """The headers of whatever goes into the log: its trace context, its message id and its signature."""
        headers = tracing.headers(traceparent) or {}
        if message_id:
            headers[MESSAGE_ID] = message_id
        if signature is None and self.signer is not None:
            signature = self.signer.sign(subject, message_id, data)
        if signature:
            headers[SIGNATURE] = signature
        return headers

    async def head(self, run: str) -> int:
        """The log's last sequence."""
        try:
            info = await self.jetstream.stream_info(log_stream(run))
        except (TimeoutError, NatsError, OSError) as error:
            raise BusError(f"the log of run {run!r} cannot be read: {reason(error)}") from error
        return int(info.state.last_seq)

    async def read(
        self, run: str, *, after: int = 0, until: int | None = None, subjects: list[str] | None = None
    ) -> AsyncGenerator[Event]:
        """Events in the log's order from `after` (exclusive), live at the head; ends after sequence `until` if given.

        A push consumer without acknowledgements. A gap in its count, a connection that was lost (the consumer does not
        outlive its server), three silent seconds (it sends a heartbeat each second), or heartbeats alone while the log
        holds more (in a cluster whose leader is lost or half cut off a consumer can stand still: nats-server issue
        5679), make a new one from the last event on: nothing is skipped and nothing comes twice.
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
                    return  # nothing that the filter lets through: no message would ever say so
                expected = 1
                standstill.reset()
                while until is None or last < until:
                    message = await self._next(queue, losses)
                    if message is None:
                        break
                    if not message.reply.startswith("$JS.ACK."):
                        # A heartbeat names the consumer's last delivery: a lost tail shows here.
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
                    context = tracing.carried(message.headers)
                    stored = meta.timestamp
                    yield Event.carried(last, message.subject, message.data, stored, message.headers, context)
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
        """The next message; None once nothing came for SILENT_S, or the connection was lost since `losses`."""
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
        """Make a consumer; its name, and how many messages wait for it."""
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
    """Notices a consumer that sends heartbeats alone while the log holds more than was read."""

    def __init__(self, head: Callable[[], Awaitable[int]], *, filtered: bool) -> None:
        self._ask, self._filtered = head, filtered
        self._beats = self._head = self._tried = 0

    def reset(self) -> None:
        """A new consumer, or an event: count again."""
        self._beats = self._head = 0

    async def after_heartbeat(self, last: int) -> bool:
        """Whether the consumer stands still, having delivered up to sequence `last`."""
        self._beats += 1
        if self._beats % BEATS == 0:
            if self._head > max(last, self._tried):
                # Behind a filter there may be nothing to read up to the head: once is enough.
                self._tried = self._head if self._filtered else 0
                return True
            with contextlib.suppress(BusError):
                self._head = await self._ask()
        return False
