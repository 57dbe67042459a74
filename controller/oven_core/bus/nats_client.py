"""A nats-py client with fixes for TLS, cancellation and permanent failures, which needs fewer event loop iterations.

Only this module and `watchdog` use nats-py's private attributes. pyproject.toml pins nats-py to the minor version that
they were written for.
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
    """Give nats-py the aiohttp that `oven_core.bus` hid from it. Raises ConfigError if it is not installed."""
    import nats.aio.transport

    transport: Any = nats.aio.transport
    try:
        import aiohttp
    except ImportError as error:
        raise ConfigError("an address with ws:// or wss:// needs the package aiohttp: pip install aiohttp") from error
    transport.aiohttp = aiohttp


_REFUSALS = ("authorization violation", "authentication expired", "authentication revoked")
"""Errors of nats-server 2.15 for refused credentials (server/errors.go)."""
WRITE_AHEAD_BYTES = 64 << 10
"""Number of bytes in the socket's buffer at which nats-py's flusher takes over, because it waits for a slow server."""
_NO_RESPONDERS = b"NATS/1.0 503"


_TLS_EOF = "returning true from eof_received() has no effect when using ssl"


def _is_relevant(record: logging.LogRecord) -> bool:
    """Return False for the harmless message that asyncio logs at the end of each connection upgraded to TLS."""
    return record.msg != _TLS_EOF


logging.getLogger("asyncio").addFilter(_is_relevant)


class _NoTlsError(NatsError):
    def __str__(self) -> str:
        return "the server offers no TLS"


@dataclass(frozen=True, slots=True)
class InlineMessage:
    """A message that the connection's reader passes directly to the subscriber's callback."""

    subject: str
    reply: str
    data: bytes
    headers: dict[str, str] | None


class BusClient(Client):
    """A nats-py client with three fixes.

    A tls:// address requires TLS. Otherwise a man in the middle could pretend that the server has none. A task that is
    cancelled while it waits for the client ends. Messages at every step need fewer event loop iterations, because of
    `request_ack`, `subscribe_inline`, and one write per iteration for everything published in it, without the flusher.
    An iteration costs tens of microseconds in each of six processes, whose cores belong to the training.
    """

    def __init__(self) -> None:
        super().__init__()
        self._ack_inbox = ""
        self._ack_sid = 0
        self._count = 0
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}
        self._inline: dict[int, Callable[[InlineMessage], object]] = {}
        self._writing = False

    async def subscribe_inline(self, subject: str, take: Callable[[InlineMessage], object]) -> Subscription:
        """Subscribe; the reader calls `take` directly, so it must be quick and must not raise."""

        async def early(message: Msg) -> None:  # messages that come before `take` is registered
            take(InlineMessage(message.subject, message.reply, message.data, message.headers))

        subscription = await self.subscribe(subject, cb=early)
        self._inline[subscription._id] = take
        return subscription

    async def request_ack(self, subject: str, data: bytes, headers: dict[str, str], timeout_s: float) -> bytes:
        """Send a request; return the answer's body, which the reader hands over without a queue or a task. Raises
        TimeoutError, NoRespondersError and other NatsError."""
        if not self.is_connected:
            raise ConnectionClosedError
        if not self._ack_inbox:
            self._ack_inbox = self.new_inbox()
            self._ack_sid = (await self.subscribe(f"{self._ack_inbox}.*"))._id
        self._count += 1
        inbox = f"{self._ack_inbox}.{self._count}"
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        self._waiting[inbox.encode()] = answer
        timer = loop.call_later(timeout_s, _time_out, answer)
        try:
            await self._send_publish(subject, inbox, data, len(data), headers)
            return await answer
        finally:
            timer.cancel()
            self._waiting.pop(inbox.encode(), None)

    def stop_reconnecting(self) -> None:
        """Cancel nats-py's reconnection attempts, which never end by themselves."""
        if self._reconnection_task is not None:
            self._reconnection_task.cancel()

    def discard_unsent(self) -> None:
        """Drop published messages that are not written to the socket yet."""
        self._pending, self._pending_data_size = [], 0

    def background_tasks(self) -> list[asyncio.Task[Any]]:
        """Return nats-py's tasks for this connection and its subscriptions."""
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
        if self._pongs and self._pongs[0].done():  # its waiter gave up, which would end nats-py's reader
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
        self._write()  # first, because the pong means that the server has read everything before it
        await super()._send_ping(future)

    def _quick(self) -> TcpTransport | None:
        """Return the transport if it is writable now; None without a connection, or if the server reads too slowly."""
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
            parsed = await self._process_headers(headers) if headers else None
            take(InlineMessage(subject.decode(), reply.decode(), bytes(data), parsed))
            return None
        if sid != self._ack_sid or not sid:
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


def _time_out(answer: asyncio.Future[bytes]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError("no answer"))


def delivery(reply: str) -> Msg.Metadata:
    """Return a consumer message's sequences in its stream and in the consumer's own count, from its reply subject."""
    return Msg.Metadata._from_reply(reply)


def reply_subject(request: Request) -> str:
    """Return the subject for the answer to a micro service's request."""
    return request._msg.reply


def final(error: Exception, url: str, user: str) -> BusError | None:
    """Return the error for a failed connection that another attempt cannot fix; None if it can. It is recognised by
    type and by the end of the server's message, because a subject or a name could contain such words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return RefusedError(
            f"the certificate of {url} is not trusted ({error.verify_message or error}); give the authority that "
            "signed it: --tls-ca FILE, or OVEN_TLS_CA in its own process"
        )
    if isinstance(error, _NoTlsError):
        return RefusedError(f"{url} asks for TLS and {error}: fix the server's configuration, or write nats://")
    message = str(error).lower().removeprefix("nats: ").strip("'\"")
    if isinstance(error, AuthorizationError) or message.endswith(_REFUSALS):
        return RefusedError(
            f"{url} refused the credentials of {user!r}; check --creds, or make a key for it with "
            "`oven-controller creds add NAME`"
        )
    return None
