"""Connect to the message bus, publish, subscribe, send requests, and read and write the log.

This is a thin layer over nats-py. If the server refuses a connection, this layer raises an error with the reason, while
nats-py would retry silently. An append reports its result. A reader of the log continues after the loss of a server.
"""

from __future__ import annotations

import asyncio
import contextlib
import ssl
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from typing import Any

from nats.aio.msg import Msg
from nats.aio.subscription import DEFAULT_SUB_PENDING_MSGS_LIMIT
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeout

from oven_core.bus import watchdog
from oven_core.bus.log_client import LogClient
from oven_core.bus.nats_client import BusClient, InlineMessage, allow_websockets, permanent_error
from oven_core.cancellation import end
from oven_core.errors import BusError, reason
from oven_core.protocol.names import inbox_prefix
from oven_core.security import tls
from oven_core.security.credentials import Credentials
from oven_core.security.signing import Signer

CONNECT_TIMEOUT_S = 3.0
PATIENT_CONNECT_TIMEOUT_S = 15.0
"""Connection timeout in seconds if the server is known to run. An overloaded machine takes seconds to answer."""
CLOSE_TIMEOUT_S = 1.0
"""Timeout of nats-py's `close` in seconds, after which this module cancels nats-py's tasks."""
CANCEL_INTERVAL_S = 0.1
"""Seconds between repeated cancellations. It is short because nats-py's tasks need no time to clean up."""
_SERVICE_ERROR = "Nats-Service-Error"
"""The header of a micro service's error, `ERROR_HEADER` of nats.micro, which is slow to import."""
LISTENER_TIMEOUT_S = 0.5
"""Maximum seconds that the check for a listener takes. The server reports a missing listener at once."""


class Bus(LogClient):
    """A connection to a NATS server. Open one with `async with Bus.connect(url, credentials) as bus`."""

    def __init__(
        self,
        client: BusClient,
        name: str,
        signer: Signer | None = None,
        url: str = "",
        on_change: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(client, signer)
        self.name = name
        self.errors: list[str] = []
        """The newest errors of nats-py and the server, at most 50."""
        self._url = url
        self._on_change = on_change or (lambda: None)
        self._connected_once = False
        self._no_server = False  # whether the last attempt found no server
        self._refusal: BusError | None = None  # an error that another attempt cannot fix
        self._give_up_task: asyncio.Task[None] | None = None
        self._watch_task: asyncio.Task[None] | None = None

    @classmethod
    @contextlib.asynccontextmanager
    async def connect(
        cls,
        url: str,
        credentials: Credentials | None = None,
        *,
        name: str = "",
        timeout_s: float = CONNECT_TIMEOUT_S,
        on_change: Callable[[], object] | None = None,
        trust: ssl.SSLContext | None = None,
        inbox: str = "",
    ) -> AsyncIterator[Bus]:
        """Connect for the duration of a block.

        `url` is one server, or the servers of a cluster separated by commas. `on_change` is called when the connection
        is lost, restored, or closed for good. `trust` holds the trusted certificate authorities, by default the one in
        OVEN_TLS_CA, or else those of the system. Replies arrive on subjects that begin with `inbox`, by default the
        user's `inbox_prefix`.

        Raises RefusedError if the server refuses the credentials or its certificate is not trusted, and BusError if no
        server answers."""
        bus = await cls.open(
            url, credentials, name=name, timeout_s=timeout_s, on_change=on_change, trust=trust, inbox=inbox
        )
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
        timeout_s: float = CONNECT_TIMEOUT_S,
        on_change: Callable[[], object] | None = None,
        reconnect: bool = True,
        trust: ssl.SSLContext | None = None,
        inbox: str = "",
    ) -> Bus:
        """Connect like `connect`, but the caller closes. With `reconnect`, a lost connection is restored."""
        user = credentials.name if credentials else name or "anonymous"
        bus = cls(BusClient(), user, Signer(credentials) if credentials else None, url, on_change)
        options: dict[str, Any] = {
            "servers": [server.strip() for server in url.split(",")],
            "name": name or user,
            "error_cb": bus._on_error,
            "disconnected_cb": bus._on_disconnect,
            "reconnected_cb": bus._on_reconnect,
            "closed_cb": bus._on_close,
            "inbox_prefix": inbox or inbox_prefix(user),
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": 0.25,
            "connect_timeout": 2,
            "ping_interval": 5,
            "pending_size": 32 * 1024 * 1024,
        }
        if any(server.startswith(("ws://", "wss://")) for server in options["servers"]):
            allow_websockets()
        if credentials:
            options["nkeys_seed_str"] = credentials.seed.decode()
        if (context := trust or tls.from_environment()) is not None:
            options["tls"] = context
        await bus._first_connection(options, timeout_s)
        # Set only now, because the first connection may take several attempts.
        bus.client.options["allow_reconnect"] = reconnect
        if reconnect:  # otherwise the caller watches the connection
            bus._watch_task = asyncio.create_task(watchdog.watch(bus.client), name=f"watch-{user}")
        return bus

    async def _first_connection(self, options: Mapping[str, Any], timeout_s: float) -> None:
        """Connect for the first time. If this raises RefusedError or BusError, nothing stays open."""
        loop = asyncio.get_running_loop()
        connect_task = asyncio.create_task(self.client.connect(**options))
        start, limit_s = loop.time(), timeout_s
        try:
            # nats-py would silently retry forever after a refusal. If no server listens, a long timeout does not help.
            while not connect_task.done() and self._refusal is None and loop.time() < start + limit_s:
                await asyncio.wait({connect_task}, timeout=0.05)
                limit_s = min(timeout_s, CONNECT_TIMEOUT_S) if self._no_server else timeout_s
        except asyncio.CancelledError:
            await end(connect_task, limit_s=CLOSE_TIMEOUT_S, interval_s=CANCEL_INTERVAL_S)
            await self.abort()
            raise
        failure = connect_task.exception() if connect_task.done() else None
        if connect_task.done() and failure is None:
            self._connected_once = True
            return
        last_error = self.errors[-1] if self.errors else "no answer"
        cause = reason(failure) if failure else last_error
        if self._refusal is None and isinstance(failure, Exception):
            self._refusal = permanent_error(failure, self._url, self.name)
        await end(connect_task, limit_s=CLOSE_TIMEOUT_S, interval_s=CANCEL_INTERVAL_S)
        await self.abort()
        raise self._refusal or BusError(
            f"no NATS server answers at {self._url} within {limit_s:g} s ({cause}); "
            "check with `oven-controller runs` whether the stack is running"
        )

    async def _on_error(self, error: Exception) -> None:
        self.errors.append(reason(error))
        self._no_server = isinstance(error, OSError) and not isinstance(error, TimeoutError)
        del self.errors[:-50]
        if (refusal := permanent_error(error, self._url, self.name)) is not None:
            self._refusal = refusal
            if self._connected_once and self._give_up_task is None:
                self._give_up_task = asyncio.create_task(self._give_up())
        elif not self.client.is_connected:  # nats-py would leave the socket of the failed attempt open
            watchdog.abort(self.client)

    async def _give_up(self) -> None:
        """Close for good after a refused reconnection, for example with a revoked key. nats-py would keep retrying."""
        self.client.stop_reconnecting()
        await self._on_close()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(1):
                await self.client.close()

    async def _on_disconnect(self) -> None:  # called before nats-py reconnects
        self.disconnects += 1
        self._on_change()

    async def _on_reconnect(self) -> None:
        self._on_change()

    async def _on_close(self) -> None:
        self.closed.set()
        self._on_change()

    async def close(self) -> None:
        """Send what is buffered and close, without waiting for an unreachable server."""
        if self._watch_task is not None:
            self._watch_task.cancel()
        try:
            if self.client.is_connected:
                async with asyncio.timeout(1):
                    await self.client.flush()
        except Exception:
            watchdog.abort(self.client)
        await self._close_client()

    async def abort(self) -> None:
        """Close the connection within seconds, whatever the server does, and leave no socket or task open.

        nats-py's `close` waits forever for a frozen server (github.com/nats-io/nats.py/issues/671)."""
        if self._watch_task is not None:
            self._watch_task.cancel()
        self.client.discard_unsent()  # nats-py's `close` would wait until everything is written
        watchdog.abort(self.client)
        await self._close_client()

    async def _close_client(self) -> None:
        """Run nats-py's `close` for at most CLOSE_TIMEOUT_S, then close the socket and cancel the remaining tasks.

        If a task is still running after that, try once more, because nats-py's reconnection can miss a cancellation."""
        client = self.client
        for _ in range(2):
            close_task = asyncio.create_task(client.close())
            await asyncio.wait({close_task}, timeout=CLOSE_TIMEOUT_S)
            if not close_task.done():
                watchdog.abort(client)
            tasks = [close_task, *client.background_tasks()]
            other_tasks = (task for task in tasks if task is not asyncio.current_task())
            await end(*other_tasks, limit_s=CLOSE_TIMEOUT_S, interval_s=CANCEL_INTERVAL_S)
            if client.is_closed and all(task.done() for task in client.background_tasks()):
                break
        self.closed.set()

    @property
    def is_connected(self) -> bool:
        """Whether the client is connected now. nats-py restores a lost connection."""
        return self.client.is_connected

    async def subscribe(
        self,
        subject: str,
        handle: Callable[[Msg], Awaitable[None]],
        *,
        queue: str = "",
        max_pending: int = DEFAULT_SUB_PENDING_MSGS_LIMIT,
    ) -> None:
        """Call `handle` for each message, shared among the subscribers of a `queue`. At most `max_pending` may wait."""
        try:
            await self.client.subscribe(subject, queue, cb=handle, pending_msgs_limit=max_pending)
        except (NatsError, OSError) as error:
            raise BusError(f"cannot subscribe to {subject}: {error}") from error

    async def subscribe_inline(self, subject: str, on_message: Callable[[InlineMessage], object]) -> None:
        """Call `on_message` directly in nats-py's reading task. The callback must be quick and must not raise."""
        try:
            await self.client.subscribe_inline(subject, on_message)
        except (NatsError, OSError) as error:
            raise BusError(f"cannot subscribe to {subject}: {error}") from error

    async def flush(self, timeout_s: float = 2.0) -> None:
        """Wait until the server has read all earlier messages, by sending a ping. Raises BusError."""
        try:
            await self.client.flush(timeout_s)
        except (NatsError, OSError) as error:
            raise BusError(f"the server did not answer a ping in {timeout_s:g} s: {error}") from error

    async def request(self, subject: str, data: bytes, timeout_s: float = 2.0) -> bytes:
        """Send a request and return the body of the answer. Raises BusError on a timeout or an error."""
        try:
            answer = await self.client.request(subject, data, timeout=timeout_s)
        except NoRespondersError as error:
            raise BusError(f"nothing answers on {subject}; check that its service is running") from error
        except NatsTimeout as error:
            raise BusError(f"no answer on {subject} within {timeout_s:g} s") from error
        except NatsError as error:
            raise BusError(f"{subject}: {error}") from error
        if refusal := (answer.headers or {}).get(_SERVICE_ERROR):
            raise BusError(f"{subject} refused the request: {refusal}")
        return bytes(answer.data)

    async def has_listener(self, subject: str) -> bool:
        """Return whether a subject has a listener. This sends an empty request and ignores the answer."""
        try:
            await self.client.request(subject, b"", timeout=LISTENER_TIMEOUT_S)
        except NoRespondersError:
            return False
        except NatsTimeout:
            return self.client.is_connected  # the server would have reported a missing listener
        except (NatsError, OSError):
            return False
        return True
