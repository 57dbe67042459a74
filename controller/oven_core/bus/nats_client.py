"""nats-py's client with its gaps closed: TLS, cancellation, final failures, and fewer loop turns.

Beside `watchdog`, this is the only module that touches nats-py's private attributes; pyproject.toml holds nats-py to
the minor version that it was written for.
"""

from __future__ import annotations

import asyncio
import logging
import ssl
from collections.abc import Callable
from dataclasses import dataclass
from typing import TYPE_CHECKING, Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.errors import AuthorizationError, ConnectionClosedError, NoRespondersError
from nats.errors import Error as NatsError

from oven_core.cancellation import preserve_cancellation
from oven_core.errors import BusError, ConfigError, RefusedError

if TYPE_CHECKING:
    from nats.micro.request import Request


def allow_websockets() -> None:
    """Give nats-py the aiohttp that `oven_core.bus` kept from it. Raises ConfigError where it is not installed."""
    import nats.aio.transport

    transport: Any = nats.aio.transport
    try:
        import aiohttp
    except ImportError as error:
        raise ConfigError("an address with ws:// or wss:// needs the package aiohttp: pip install aiohttp") from error
    transport.aiohttp = aiohttp


_REFUSALS = ("authorization violation", "authentication expired", "authentication revoked")
"""What nats-server 2.15 says of credentials that it does not take (server/errors.go)."""
WRITE_AHEAD_BYTES = 64 << 10
"""Beyond that the flusher writes, which waits for a server that is slow to read."""
_NO_RESPONDERS = b"NATS/1.0 503"


_TLS_EOF = "returning true from eof_received() has no effect when using ssl"


def _worth_saying(record: logging.LogRecord) -> bool:
    """False for asyncio's word on the end of each connection that nats-py has turned into TLS: it warns of nothing, and
    would be the last line of every command."""
    return record.msg != _TLS_EOF


logging.getLogger("asyncio").addFilter(_worth_saying)


class _NoTlsError(NatsError):
    def __str__(self) -> str:
        return "the server offers no TLS"


@dataclass(frozen=True, slots=True)
class InlineMessage:
    """A message as it came, for a subscriber that the connection's reader calls itself."""

    subject: str
    reply: str
    data: bytes
    headers: dict[str, str] | None


class BusClient(Client):
    """nats-py with three things settled: a tls:// address means it (anyone who stands between could otherwise say that
    there is no TLS), a task that is told to end while it waits here ends, and what is said and heard at every step
    takes fewer turns of the event loop: `request_ack`, `subscribe_inline`, and what was published in one turn is
    written at its end, at once and without the flusher. A turn costs tens of microseconds, in six processes, and their
    cores are the training's."""

    def __init__(self) -> None:
        super().__init__()
        self._answers = ""
        self._answers_sid = 0
        self._count = 0
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}
        self._inline: dict[int, Callable[[InlineMessage], object]] = {}
        self._writing = False

    async def subscribe_inline(self, subject: str, take: Callable[[InlineMessage], object]) -> Subscription:
        """Subscribe; `take` is called by the reader itself, without a queue and a task between, so it must be quick and
        not raise."""

        async def early(message: Msg) -> None:  # that came before `take` was known
            take(InlineMessage(message.subject, message.reply, message.data, message.headers))

        subscription = await self.subscribe(subject, cb=early)
        self._inline[subscription._id] = take
        return subscription

    async def request_ack(self, subject: str, data: bytes, headers: dict[str, str], timeout_s: float) -> bytes:
        """The answer's body, handed over by the reader itself, without a queue and a task. Raises TimeoutError,
        NoRespondersError and other NatsError."""
        if not self.is_connected:
            raise ConnectionClosedError
        if not self._answers:
            self._answers = self.new_inbox()
            self._answers_sid = (await self.subscribe(f"{self._answers}.*"))._id
        self._count += 1
        inbox = f"{self._answers}.{self._count}"
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        self._waiting[inbox.encode()] = answer
        timer = loop.call_later(timeout_s, _late, answer)
        try:
            await self._send_publish(subject, inbox, data, len(data), headers)
            return await answer
        finally:
            timer.cancel()
            self._waiting.pop(inbox.encode(), None)

    def stop_reconnecting(self) -> None:
        """Cancel nats-py's own attempts, which have no end."""
        if self._reconnection_task is not None:
            self._reconnection_task.cancel()

    def discard_unsent(self) -> None:
        """What was published and has not been written yet is dropped."""
        self._pending, self._pending_data_size = [], 0

    def background_tasks(self) -> list[asyncio.Task[Any]]:
        """Those that nats-py keeps for this connection and its subscriptions."""
        own = [self._reading_task, self._flusher_task, self._ping_interval_task, self._reconnection_task]
        return [task for task in (*own, *(sub._wait_for_msgs_task for sub in self._subs.values())) if task]

    async def connect(self, *args: Any, **options: Any) -> None:
        with preserve_cancellation():
            await super().connect(*args, **options)

    async def request(self, *args: Any, **options: Any) -> Msg:
        with preserve_cancellation():
            return await super().request(*args, **options)

    async def flush(self, *args: Any, **options: Any) -> None:
        with preserve_cancellation():
            await super().flush(*args, **options)

    async def _process_pong(self) -> None:
        if self._pongs and self._pongs[0].done():  # who waited gave up, and nats-py's reader would end over it
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        if force_flush or self._quick() is None:
            with preserve_cancellation():
                return await super()._flush_pending(force_flush)
        if not self._writing:
            self._writing = True
            asyncio.get_running_loop().call_soon(self._write)
        return None

    async def _send_ping(self, future: asyncio.Future[bool] | None = None) -> None:
        self._write()  # first: the answer says that the server has read all that was said before
        await super()._send_ping(future)

    def _quick(self) -> TcpTransport | None:
        """What can be written to now: there is a connection, and the server reads what it was told before."""
        transport = self._transport
        if not self.is_connected or not isinstance(transport, TcpTransport) or transport._io_writer is None:
            return None
        waiting = transport._io_writer.transport.get_write_buffer_size()
        return transport if waiting <= WRITE_AHEAD_BYTES else None

    def _write(self) -> None:
        self._writing = False
        transport = self._quick()
        if transport is not None and self._pending:
            pending, self._pending, self._pending_data_size = self._pending, [], 0
            transport.writelines(pending)  # type: ignore[no-untyped-call]

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        if (take := self._inline.get(sid)) is not None:
            self.stats["in_msgs"] += 1
            self.stats["in_bytes"] += len(data)
            told = await self._process_headers(headers) if headers else None
            take(InlineMessage(subject.decode(), reply.decode(), bytes(data), told))
            return None
        if sid != self._answers_sid or not sid:
            return await super()._process_msg(sid, subject, reply, data, headers)
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        answer = self._waiting.get(bytes(subject))
        if answer is not None and not answer.done():
            if headers and bytes(headers).startswith(_NO_RESPONDERS):
                answer.set_exception(NoRespondersError())
            else:
                answer.set_result(bytes(data))
        return None

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        self._inline.pop(sid, None)
        super()._remove_sub(sid, max_msgs)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        server = self._current_server
        if initial_connection and server and server.uri.scheme == "tls" and not info.get("tls_required"):
            raise _NoTlsError
        await super()._process_info(info, initial_connection)


def _late(answer: asyncio.Future[bytes]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError("no answer"))


def delivery(reply: str) -> Msg.Metadata:
    """Where a consumer's message is in its stream and in the consumer's own count, by its reply subject."""
    return Msg.Metadata._from_reply(reply)


def reply_subject(request: Request) -> str:
    """The subject to which a micro service's request wants its answer."""
    return request._msg.reply


def final(error: Exception, url: str, who: str) -> BusError | None:
    """What this failure to connect means if trying again does not mend it. Told by type and by the server's own words,
    of which a subject or a name could hold a part."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return RefusedError(
            f"the certificate of {url} is not trusted ({error.verify_message or error}); give the authority that "
            "signed it: --tls-ca FILE, or OVEN_TLS_CA in its own process"
        )
    if isinstance(error, _NoTlsError):
        return RefusedError(f"{url} asks for TLS and {error}: mend the server's configuration, or write nats://")
    said = str(error).lower().removeprefix("nats: ").strip("'\"")
    if isinstance(error, AuthorizationError) or said.endswith(_REFUSALS):
        return RefusedError(
            f"{url} refused the credentials of {who!r}; check --creds, or make a key for it with "
            "`oven-controller creds add NAME`"
        )
    return None
