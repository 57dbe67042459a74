"""The bus as the rest of the project sees it: connect, publish, subscribe, request, and the log.

A thin edge over nats-py that settles three things once: connecting fails fast and says why (nats-py alone retries bad
credentials in silence), and in oven_core.bus.log appending reports what the log did, and reading survives a
server that went away.
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
from nats.micro.request import ERROR_HEADER

from oven_core.bus import watchdog
from oven_core.bus.log import LogClient
from oven_core.bus.nats_client import BusClient, InlineMessage, allow_websockets, final
from oven_core.cancellation import end
from oven_core.errors import BusError, reason
from oven_core.protocol.permissions import inbox_prefix
from oven_core.security import tls
from oven_core.security.credentials import Credentials
from oven_core.security.signing import Signer

CONNECT_S = 3.0
PATIENT_S = 15.0
"""For who was told that a server is there: a machine with more to do than it can takes seconds to answer."""
END_S = 1.0
"""What nats-py does at its end may take so long; then it is ended from outside."""
AGAIN_S = 0.1
"""nats-py's tasks have nothing to clean up, and several of its waits lose a cancellation on Python 3.11."""
LISTENER_S = 0.5
"""The server says at once that no one listens; who listens need not answer."""


class Bus(LogClient):
    """A connection. Make one with `async with Bus.connect(url, credentials) as bus`."""

    def __init__(
        self,
        client: BusClient,
        name: str,
        signer: Signer | None = None,
        url: str = "",
        changed: Callable[[], object] | None = None,
    ) -> None:
        super().__init__(client, signer)
        self.name = name
        self.errors: list[str] = []
        """The newest of what nats-py and the server complained of, at most 50."""
        self._url = url
        self._changed = changed or (lambda: None)
        self._made = False
        self._nobody_listens = False  # at the last try: then waiting longer is of no use
        self._refusal: BusError | None = None  # trying again does not mend it
        self._giving_up: asyncio.Task[None] | None = None
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
        inbox: str = "",
    ) -> AsyncIterator[Bus]:
        """`url`: one server, or a cluster's separated by commas. Raises RefusedError when the server turns the
        credentials down or its certificate is not trusted, BusError when there is no server. `changed` is called when
        the connection is lost, is back, or is closed for good. `trust`: whose certificates to take, else those that
        OVEN_TLS_CA names, else the system's. `inbox`: where answers to its requests go, else to the name's own."""
        bus = await cls.open(
            url, credentials, name=name, timeout_s=timeout_s, changed=changed, trust=trust, inbox=inbox
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
        timeout_s: float = CONNECT_S,
        changed: Callable[[], object] | None = None,
        reconnect: bool = True,
        trust: ssl.SSLContext | None = None,
        inbox: str = "",
    ) -> Bus:
        """Like `connect`, for who closes or aborts it themselves. `reconnect` False: a connection that is lost stays
        lost, and its owner makes another."""
        who = credentials.name if credentials else name or "anonymous"
        bus = cls(BusClient(), who, Signer(credentials) if credentials else None, url, changed)
        options: dict[str, Any] = {
            "servers": [server.strip() for server in url.split(",")],
            "name": name or who,
            "error_cb": bus._on_error,
            "disconnected_cb": bus._on_loss,
            "reconnected_cb": bus._on_return,
            "closed_cb": bus._on_close,
            "inbox_prefix": inbox or inbox_prefix(who),
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
        bus.client.options["allow_reconnect"] = reconnect  # not before: the first connection is tried more than once
        if reconnect:  # else its owner watches it
            bus._watch = asyncio.create_task(watchdog.watch(bus.client), name=f"watch-{who}")
        return bus

    async def _first_connection(self, options: Mapping[str, Any], timeout_s: float) -> None:
        """Raises RefusedError or BusError, and leaves nothing open then."""
        loop = asyncio.get_running_loop()
        connecting = asyncio.create_task(self.client.connect(**options))
        began, limit_s = loop.time(), timeout_s
        try:
            # After a refusal it would be tried again for ever, in silence.
            while not connecting.done() and self._refusal is None and loop.time() < began + limit_s:
                await asyncio.wait({connecting}, timeout=0.05)
                limit_s = min(timeout_s, CONNECT_S) if self._nobody_listens else timeout_s
        except asyncio.CancelledError:
            await end(connecting, within_s=END_S, again_s=AGAIN_S)
            await self.abort()
            raise
        ended = connecting.exception() if connecting.done() else None
        if connecting.done() and ended is None:
            self._made = True
            return
        why = reason(ended) if ended else (self.errors[-1] if self.errors else "no answer")
        if self._refusal is None and isinstance(ended, Exception):
            self._refusal = final(ended, self._url, self.name)
        await end(connecting, within_s=END_S, again_s=AGAIN_S)
        await self.abort()
        raise self._refusal or BusError(
            f"no NATS server answers at {self._url} within {limit_s:g} s ({why}); "
            "is the stack up? `oven-controller runs` lists what runs"
        )

    async def _on_error(self, error: Exception) -> None:
        self.errors.append(reason(error))
        self._nobody_listens = isinstance(error, OSError) and not isinstance(error, TimeoutError)
        del self.errors[:-50]
        if (refusal := final(error, self._url, self.name)) is not None:
            self._refusal = refusal
            if self._made and self._giving_up is None:
                self._giving_up = asyncio.create_task(self._give_up())
        elif not self.client.is_connected:  # an attempt that failed, which nats-py would leave open
            watchdog.abort(self.client)

    async def _give_up(self) -> None:
        """Refused when it reconnects (its key was revoked): nats-py alone would try for ever, in silence."""
        self.client.stop_reconnecting()
        await self._on_close()
        with contextlib.suppress(Exception):
            async with asyncio.timeout(1):
                await self.client.close()

    async def _on_loss(self) -> None:  # before it is made anew, so nothing is heard between the loss and its count
        self.losses += 1
        self._changed()

    async def _on_return(self) -> None:
        self._changed()

    async def _on_close(self) -> None:
        self.closed.set()
        self._changed()

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
        self.client.discard_unsent()  # `close` would wait until it is written
        watchdog.abort(self.client)
        await self._end()

    async def _end(self) -> None:
        """nats-py's `close`, and what it leaves where it does not come to its end in a second: the socket, and tasks of
        which asyncio complains on stderr as soon as they are collected. Once more where that made a connection anew: an
        attempt to reconnect that loses its cancellation continues."""
        client = self.client
        for _ in range(2):
            closing = asyncio.create_task(client.close())
            await asyncio.wait({closing}, timeout=END_S)
            if not closing.done():
                watchdog.abort(client)
            tasks = [closing, *client.background_tasks()]
            left = (task for task in tasks if task is not asyncio.current_task())
            await end(*left, within_s=END_S, again_s=AGAIN_S)
            if client.is_closed and all(task.done() for task in client.background_tasks()):
                break
        self.closed.set()

    @property
    def connected(self) -> bool:
        """Whether there is a connection now; a lost one is made anew."""
        return self.client.is_connected

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

    async def subscribe_inline(self, subject: str, take: Callable[[InlineMessage], object]) -> None:
        """Subscribe with the least between: `take` is called by the connection's reader, for each message in order, so
        it must be quick and not raise."""
        try:
            await self.client.subscribe_inline(subject, take)
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

    async def has_listener(self, subject: str) -> bool:
        """Whether somebody listens on a subject: an empty request is sent, and what is answered does not matter."""
        try:
            await self.client.request(subject, b"", timeout=LISTENER_S)
        except NoRespondersError:
            return False
        except NatsTimeout:
            return self.client.is_connected
        except (NatsError, OSError):
            return False
        return True
