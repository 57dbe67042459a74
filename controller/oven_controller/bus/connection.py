"""The bus as the rest of the project sees it: publish, subscribe, request, append to the log, read the log.

A thin edge over nats-py that settles three things once: connecting fails fast and says why (nats-py alone retries bad
credentials in silence), appending reports what the log did, and reading survives a server that went away.
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import ssl
from collections.abc import AsyncGenerator, AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from nats.aio.msg import Msg
from nats.aio.subscription import DEFAULT_SUB_PENDING_MSGS_LIMIT
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeout
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.micro.request import ERROR_HEADER

from oven_controller.bus import watchdog
from oven_controller.bus.nats_client import BusClient, Heard, final
from oven_controller.bus.read_queue import LOOK_S, Arrivals
from oven_controller.cancellation import end
from oven_controller.errors import BusError, reason
from oven_controller.protocol.events import MESSAGE_ID, SIGNATURE, Event
from oven_controller.protocol.names import log_stream
from oven_controller.security import tls
from oven_controller.security.credentials import Credentials, inbox_prefix
from oven_controller.security.signing import Signer
from oven_controller.telemetry import tracing

CONNECT_S = 3.0
HEARD_S = 0.5
"""The server says at once that no one listens; who listens need not answer."""
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


class Bus:
    """A connection. Make one with `async with Bus.connect(url, credentials) as bus`."""

    def __init__(self, client: BusClient, name: str, signer: Signer | None = None) -> None:
        self.client = client
        self.name = name
        self.signer = signer
        """Signs what is appended; who may sign what is for the readers to judge."""
        self.errors: list[str] = []
        self.losses = 0
        """Times that the connection was lost. nats-py makes it anew and subscribes again; what was said meanwhile to a
        plain subscriber is lost to it, and anyone who needs it asks `history`."""
        self.giving_up: asyncio.Task[None] | None = None
        self.closed = asyncio.Event()
        """Set when it is closed for good: by `close`, or by an error after which nats-py does not try again."""
        self._watch: asyncio.Task[None] | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(
        cls,
        url: str,
        credentials: Credentials | None = None,
        *,
        name: str = "",
        timeout_s: float = CONNECT_S,
        changed: Callable[[], object] | None = None,
        trust: ssl.SSLContext | None = None,
    ) -> AsyncIterator[Bus]:
        """`url`: one server, or a cluster's separated by commas. Raises RefusedError when the server turns the
        credentials down or its certificate is not trusted, BusError when there is no server. `changed` is called when
        the connection is lost, is back, or is closed for good. `trust`: whose certificates to take, else those that
        OVEN_TLS_CA names, else the system's."""
        bus = await cls.open(url, credentials, name=name, timeout_s=timeout_s, changed=changed, trust=trust)
        try:
            yield bus
        finally:
            await bus.close()

    @classmethod
    async def open(
        cls,
        url: str,
        credentials: Credentials | None = None,
        *,
        name: str = "",
        timeout_s: float = CONNECT_S,
        changed: Callable[[], object] | None = None,
        reconnect: bool = True,
        trust: ssl.SSLContext | None = None,
    ) -> Bus:
        """Like `connect`, for who closes or aborts it themselves. `reconnect` False: a connection that is lost stays
        lost, and its owner makes another."""
        who = credentials.name if credentials else name or "anonymous"
        client = BusClient()
        bus = cls(client, who, Signer(credentials) if credentials else None)
        problems = bus.errors
        failures: list[BusError] = []  # those that trying again does not mend
        connected = False
        trust = trust or tls.from_environment()
        tell = changed or (lambda: None)

        async def note(error: Exception) -> None:
            problems.append(reason(error))
            del problems[:-50]
            if (failure := final(error, url, who)) is not None:
                failures[:] = [failure]
                if connected and bus.giving_up is None:
                    bus.giving_up = asyncio.create_task(give_up())
            elif not client.is_connected:  # an attempt that failed, which nats-py would leave open
                watchdog.abort(client)

        async def give_up() -> None:
            """Refused when it reconnects (its key was revoked): nats-py alone would try for ever, in silence."""
            if client._reconnection_task is not None:
                client._reconnection_task.cancel()
            bus.closed.set()
            tell()
            with contextlib.suppress(Exception):
                async with asyncio.timeout(1):
                    await client.close()

        async def lost() -> None:  # before it is made anew, so nothing is heard between the loss and its count
            bus.losses += 1
            tell()

        async def back() -> None:
            tell()

        async def gone() -> None:
            bus.closed.set()
            tell()

        options: dict[str, Any] = {
            "servers": [server.strip() for server in url.split(",")],
            "name": name or who,
            "error_cb": note,
            "disconnected_cb": lost,
            "reconnected_cb": back,
            "closed_cb": gone,
            "inbox_prefix": inbox_prefix(who),
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": 0.25,
            "connect_timeout": 1,
            "ping_interval": 5,
            "pending_size": 32 * 1024 * 1024,
        }
        if credentials:
            options["nkeys_seed_str"] = credentials.seed.decode()
        if trust is not None:
            options["tls"] = trust
        connecting = asyncio.create_task(client.connect(**options))
        deadline = asyncio.get_running_loop().time() + timeout_s
        try:
            while not connecting.done() and asyncio.get_running_loop().time() < deadline:
                if failures:
                    break  # it would be tried again for ever, in silence
                await asyncio.wait({connecting}, timeout=0.05)
        except asyncio.CancelledError:
            await end(connecting, within_s=1)
            await bus.abort()
            raise
        if connecting.done() and connecting.exception() is None:
            connected = True
            client.options["allow_reconnect"] = reconnect  # not before: the first connection is tried more than once
            if reconnect:  # else its owner watches it
                bus._watch = asyncio.create_task(watchdog.watch(client), name=f"watch-{who}")
            return bus
        ended = connecting.exception() if connecting.done() else None
        why = reason(ended) if ended else (problems[-1] if problems else "no answer")
        if isinstance(ended, Exception) and (failure := final(ended, url, who)) is not None:
            failures.append(failure)
        await end(connecting, within_s=1)
        await bus.abort()
        if failures:
            raise failures[0]
        raise BusError(
            f"no NATS server answers at {url} within {timeout_s:g} s ({why}); "
            "is the stack up? `oven-controller runs` lists what runs"
        )

    async def close(self) -> None:
        """Flush and close; a server that is gone does not hold it up."""
        if self._watch is not None:
            self._watch.cancel()
        try:
            if self.client.is_connected:
                async with asyncio.timeout(1):
                    await self.client.flush()
        except Exception:
            watchdog.abort(self.client)
        await self._end()

    async def abort(self) -> None:
        """Cut it off, closing nothing at the peer, within a second and whatever the peer does: nats-py's own `close`
        waits for what a frozen one never does (github.com/nats-io/nats.py/issues/671). Nothing of it is left: no
        socket, no task."""
        if self._watch is not None:
            self._watch.cancel()
        self.client._pending, self.client._pending_data_size = [], 0  # `close` would wait until it is written
        watchdog.abort(self.client)
        await self._end()

    async def _end(self) -> None:
        """nats-py's `close`, and what it leaves where it does not come to its end in a second: the socket, and tasks of
        which asyncio complains on stderr as soon as they are collected."""
        client = self.client
        closing = asyncio.create_task(client.close())
        await asyncio.wait({closing}, timeout=1)
        if not closing.done():
            watchdog.abort(client)
        tasks = [closing, client._reading_task, client._flusher_task, client._ping_interval_task]
        tasks += [client._reconnection_task, *(sub._wait_for_msgs_task for sub in client._subs.values())]
        await end(*(task for task in tasks if task and task is not asyncio.current_task()), within_s=1)
        self.closed.set()

    @property
    def connected(self) -> bool:
        return self.client.is_connected

    @property
    def jetstream(self) -> JetStreamContext:
        return self.client.jetstream(timeout=2)

    async def publish(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        """Core publish: no answer, and no error if no one listens. While the server is away it is kept, up to 32 MiB,
        and sent when it is back. Raises BusError beyond that, or when the connection is closed for good."""
        try:
            await self.client.publish(subject, data, headers=headers)
        except (NatsError, OSError) as error:
            raise BusError(f"{subject} was not published: {error}") from error

    async def subscribe(
        self,
        subject: str,
        handle: Callable[[Msg], Awaitable[None]],
        *,
        queue: str = "",
        waiting: int = DEFAULT_SUB_PENDING_MSGS_LIMIT,
    ) -> None:
        """`queue`: of all who subscribe with that word, each message goes to one. `waiting`: so many messages may wait
        to be handled; what comes beyond is dropped."""
        try:
            await self.client.subscribe(subject, queue, cb=handle, pending_msgs_limit=waiting)
        except (NatsError, OSError) as error:
            raise BusError(f"cannot subscribe to {subject}: {error}") from error

    async def hear(self, subject: str, take: Callable[[Heard], object]) -> None:
        """Subscribe with the least between: `take` is called by the connection's reader, for each message in order, so
        it must be quick and not raise."""
        try:
            await self.client.hear(subject, take)
        except (NatsError, OSError) as error:
            raise BusError(f"cannot subscribe to {subject}: {error}") from error

    async def flush(self, timeout_s: float = 2.0) -> None:
        """Until the server has answered a ping, and so has read all that was sent before. Raises BusError."""
        try:
            await self.client.flush(timeout_s)
        except (NatsError, OSError) as error:
            raise BusError(f"the server did not answer a ping in {timeout_s:g} s: {error}") from error

    async def request(self, subject: str, data: bytes, timeout_s: float = 2.0) -> bytes:
        """The answer's body. Raises BusError when no one answers in time, or a micro service answers with an error."""
        try:
            answer = await self.client.request(subject, data, timeout=timeout_s)
        except NoRespondersError as error:
            raise BusError(f"no one answers on {subject}; does what should answer there run?") from error
        except NatsTimeout as error:
            raise BusError(f"no answer on {subject} within {timeout_s:g} s") from error
        except NatsError as error:
            raise BusError(f"{subject}: {error}") from error
        if fault := (answer.headers or {}).get(ERROR_HEADER):
            raise BusError(f"{subject} refused the request: {fault}")
        return bytes(answer.data)

    async def heard(self, subject: str) -> bool:
        """Whether somebody listens on a subject: an empty request is sent, and what is answered does not matter."""
        try:
            await self.client.request(subject, b"", timeout=HEARD_S)
        except NoRespondersError:
            return False
        except NatsTimeout:
            return self.client.is_connected
        except (NatsError, OSError):
            return False
        return True

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
            answer = json.loads(await self.client.asked(subject, data, headers, ACK_S))
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
        last, tried = after, 0
        while until is None or last < until:
            await self._connected()
            inbox, losses, silent_s = self.client.new_inbox(), self.losses, 0.0
            arrived = Arrivals()
            subscription = await self.client.hear(inbox, arrived.put)
            try:
                consumer, waiting = await self._consumer(run, inbox, last, subjects)
                if until is not None and not waiting:
                    return  # nothing that the filter lets through: no message would ever say so
                expected, beats, head = 1, 0, 0
                while until is None or last < until:
                    message = await arrived.next()
                    if message is None:
                        silent_s += LOOK_S
                        if silent_s >= SILENT_S or self.losses != losses or self.client.is_closed:
                            break
                        continue
                    silent_s = 0.0
                    if not message.reply.startswith("$JS.ACK."):
                        # A heartbeat names the consumer's last delivery: a lost tail shows here.
                        delivered = (message.headers or {}).get("Nats-Last-Consumer")
                        if delivered is not None and int(delivered) >= expected:
                            break
                        beats += 1
                        if beats % BEATS == 0:
                            if head > max(last, tried):
                                tried = head if subjects else 0  # behind a filter there may be nothing to read up to it
                                break
                            with contextlib.suppress(BusError):
                                head = await self.head(run)
                        continue
                    beats = head = 0
                    meta = Msg.Metadata._from_reply(message.reply)
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

    async def _connected(self) -> None:
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
