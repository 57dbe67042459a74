"""A nats-py client with fixes for TLS, cancellation and permanent failures, and with less work per message.

Only this module uses nats-py's private attributes. `BusClient` checks that the installed version has them.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import ssl
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import cache
from importlib import metadata
from typing import TYPE_CHECKING, Any, Final

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.aio.subscription import Subscription
from nats.aio.transport import TcpTransport
from nats.errors import AuthorizationError, ConnectionClosedError, NoRespondersError, StaleConnectionError
from nats.errors import Error as NatsError

from oven_core.cancellation import preserve_cancellation
from oven_core.errors import BusError, ConfigError, RefusedError

if TYPE_CHECKING:
    from nats.micro.request import Request


def allow_websockets() -> None:
    """Import aiohttp for nats-py, from which `oven_core.bus` hid it. Raises ConfigError if it is not installed."""
    import nats.aio.transport

    transport: Any = nats.aio.transport
    try:
        import aiohttp
    except ImportError as error:
        raise ConfigError("ws:// and wss:// addresses need aiohttp; run `pip install aiohttp`") from error
    transport.aiohttp = aiohttp


_REFUSALS = ("authorization violation", "authentication expired", "authentication revoked")
"""Errors of nats-server 2.15 for refused credentials (server/errors.go)."""
WRITE_AHEAD_BYTES = 64 << 10
"""Bytes in the socket's buffer above which this client leaves writing to nats-py, which waits for a slow server."""
READ_BYTES = 64 << 10
"""Maximum bytes of one read from the socket. For asyncio's 256 KiB, malloc maps and unmaps memory at each read."""
_NO_RESPONDERS = b"NATS/1.0 503"
PRIVATE_NAMES: Final[Mapping[type, tuple[str, ...]]] = {
    Client: (
        "_current_server", "_flush_pending", "_flusher_task", "_pending", "_pending_data_size", "_ping_interval_task",
        "_pongs", "_process_headers", "_process_info", "_process_msg", "_process_op_err", "_process_pong",
        "_reading_task", "_reconnection_task", "_remove_sub", "_send_ping", "_send_publish", "_subs", "_transport",
    ),
    Msg.Metadata: ("_from_reply",),
    Subscription: ("_id", "_wait_for_msgs_task"),
    TcpTransport: ("_io_writer",),
}  # fmt: skip
"""nats-py's private methods and attributes that this module uses."""
TESTED_VERSIONS: Final = "nats-py 2.12 to 2.16"
_TLS_EOF = "returning true from eof_received() has no effect when using ssl"


def _is_relevant(record: logging.LogRecord) -> bool:
    """Filter out the harmless message that asyncio logs at the end of each connection that was upgraded to TLS."""
    return record.msg != _TLS_EOF


logging.getLogger("asyncio").addFilter(_is_relevant)


@cache
def check_private_names() -> None:
    """Raise ConfigError if the installed nats-py lacks a private name. Attributes are created by `__init__`."""
    missing = sorted(
        name
        for cls, names in PRIVATE_NAMES.items()
        for name in names
        if not hasattr(cls, name) and name not in vars(cls)["__init__"].__code__.co_names
    )
    if missing:
        raise ConfigError(
            f"nats-py {metadata.version('nats-py')} has no {', '.join(missing)}, but the connection to the bus needs "
            f"them; install {TESTED_VERSIONS}"
        )


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
    """A nats-py client with three changes.

    First, a tls:// address requires TLS. Otherwise a man in the middle could pretend that the server has none. Second,
    a task that is cancelled while it waits for the client always ends. Third, each message takes fewer iterations of
    the event loop, because of `request_ack`, `subscribe_inline`, and a single write for everything published in one
    iteration. An iteration takes tens of microseconds in each of six processes, on cores that the training needs."""

    def __init__(self) -> None:
        check_private_names()
        super().__init__()
        self._ack_inbox = ""  # prefix of the subjects for answers to `request_ack`
        self._ack_sid = 0  # id of the subscription to those subjects
        self._request_count = 0
        self._pending_acks: dict[bytes, asyncio.Future[bytes]] = {}
        self._inline_callbacks: dict[int, Callable[[InlineMessage], object]] = {}
        self._is_write_scheduled = False

    async def subscribe_inline(self, subject: str, on_message: Callable[[InlineMessage], object]) -> Subscription:
        """Subscribe a callback that nats-py's reading task calls directly. It must be quick and must not raise."""

        async def on_early_message(message: Msg) -> None:  # for messages before `on_message` is registered
            on_message(InlineMessage(message.subject, message.reply, message.data, message.headers))

        subscription = await self.subscribe(subject, cb=on_early_message)
        self._inline_callbacks[subscription._id] = on_message
        return subscription

    async def request_ack(self, subject: str, data: bytes, headers: dict[str, str], timeout_s: float) -> bytes:
        """Send a request and return the body of the answer, without nats-py's queue and task for each answer.

        Raises TimeoutError, NoRespondersError and other NatsErrors."""
        if not self.is_connected:
            raise ConnectionClosedError
        if not self._ack_inbox:
            self._ack_inbox = self.new_inbox()
            self._ack_sid = (await self.subscribe(f"{self._ack_inbox}.*"))._id
        self._request_count += 1
        inbox = f"{self._ack_inbox}.{self._request_count}"
        loop = asyncio.get_running_loop()
        answer: asyncio.Future[bytes] = loop.create_future()
        self._pending_acks[inbox.encode()] = answer
        timer = loop.call_later(timeout_s, _time_out, answer)
        try:
            await self._send_publish(subject, inbox, data, len(data), headers)
            return await answer
        finally:
            timer.cancel()
            self._pending_acks.pop(inbox.encode(), None)

    def stop_reconnecting(self) -> None:
        """Cancel nats-py's reconnection attempts, which never end by themselves."""
        if self._reconnection_task is not None:
            self._reconnection_task.cancel()

    def discard_unsent(self) -> None:
        """Drop published messages that have not been written to the socket."""
        self._pending, self._pending_data_size = [], 0

    @property
    def socket_writer(self) -> Any:
        """The writer of the connection's socket, or None if there is none."""
        return getattr(self._transport, "_io_writer", None)

    @property
    def has_given_up(self) -> bool:
        """Whether nats-py has stopped its attempts to reconnect."""
        return self._reconnection_task is not None and self._reconnection_task.done()

    async def ping(self, pong: asyncio.Future[bool]) -> None:
        """Send a ping. The answer sets the result of `pong`."""
        await self._send_ping(pong)

    async def drop_stale_connection(self) -> None:
        """Make nats-py open a new connection, because this one is silent."""
        await self._process_op_err(StaleConnectionError())

    def background_tasks(self) -> list[asyncio.Task[Any]]:
        """Return nats-py's tasks for this connection and its subscriptions."""
        tasks = [self._reading_task, self._flusher_task, self._ping_interval_task, self._reconnection_task]
        return [task for task in (*tasks, *(sub._wait_for_msgs_task for sub in self._subs.values())) if task]

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
        if self._pongs and self._pongs[0].done():  # the ping's sender gave up, and nats-py would fail to set the result
            self._pongs[0] = asyncio.get_running_loop().create_future()
        await super()._process_pong()

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        if force_flush or self._writable_transport() is None:
            with preserve_cancellation():
                return await super()._flush_pending(force_flush)
        if not self._is_write_scheduled:
            self._is_write_scheduled = True
            asyncio.get_running_loop().call_soon(self._write)
        return None

    async def _send_ping(self, future: asyncio.Future[bool] | None = None) -> None:
        self._write()  # before the ping, because a pong must mean that the server has read all earlier messages
        await super()._send_ping(future)

    def _writable_transport(self) -> TcpTransport | None:
        """Return the transport, or None if it is not connected or its buffer is too full for more writes."""
        transport = self._transport
        if not self.is_connected or not isinstance(transport, TcpTransport) or transport._io_writer is None:
            return None
        buffer_size = transport._io_writer.transport.get_write_buffer_size()
        return transport if buffer_size <= WRITE_AHEAD_BYTES else None

    def _write(self) -> None:
        self._is_write_scheduled = False
        transport = self._writable_transport()
        if transport is not None and self._pending:
            pending, self._pending, self._pending_data_size = self._pending, [], 0
            transport.writelines(pending)  # type: ignore[no-untyped-call]

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
        on_message = self._inline_callbacks.get(sid)
        if on_message is None and (not self._ack_sid or sid != self._ack_sid):
            return await super()._process_msg(sid, subject, reply, data, headers)
        self.stats["in_msgs"] += 1
        self.stats["in_bytes"] += len(data)
        if on_message is not None:
            parsed = await self._process_headers(headers) if headers else None
            on_message(InlineMessage(subject.decode(), reply.decode(), bytes(data), parsed))
            return None
        answer = self._pending_acks.get(bytes(subject))
        if answer is not None and not answer.done():
            if headers and bytes(headers).startswith(_NO_RESPONDERS):
                answer.set_exception(NoRespondersError())
            else:
                answer.set_result(bytes(data))
        return None

    def _remove_sub(self, sid: int, max_msgs: int = 0) -> None:
        self._inline_callbacks.pop(sid, None)
        super()._remove_sub(sid, max_msgs)

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        server = self._current_server
        if initial_connection and server and server.uri.scheme == "tls" and not info.get("tls_required"):
            raise _NoTlsError
        await super()._process_info(info, initial_connection)
        if initial_connection and (writer := self.socket_writer) is not None:
            with contextlib.suppress(AttributeError):  # a transport of another event loop
                writer.transport.max_size = READ_BYTES


def _time_out(answer: asyncio.Future[bytes]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError("no answer"))


def delivery_metadata(reply: str) -> Msg.Metadata:
    """Return the metadata of a consumer's message, such as its sequence numbers, from its reply subject."""
    return Msg.Metadata._from_reply(reply)


def reply_subject(request: Request) -> str:
    """Return the subject for the answer to a micro service's request."""
    return request._msg.reply


def permanent_error(error: Exception, url: str, user: str) -> BusError | None:
    """Return the error for a connection failure that another attempt cannot fix, or None if it may be temporary.

    Only the end of the server's message is compared, because it may begin with a name that contains the same words."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return RefusedError(
            f"the certificate of {url} is not trusted ({error.verify_message or error}); name the authority "
            "that signed it with --tls-ca FILE, or OVEN_TLS_CA in a separate process"
        )
    if isinstance(error, _NoTlsError):
        return RefusedError(f"{url} requires TLS, but {error}: fix the server's configuration, or use nats://")
    message = str(error).lower().removeprefix("nats: ").strip("'\"")
    if isinstance(error, AuthorizationError) or message.endswith(_REFUSALS):
        return RefusedError(
            f"{url} refused the credentials of {user!r}; check --creds, or create a key with "
            "`oven-controller creds add NAME`"
        )
    return None
