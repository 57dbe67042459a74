"""The bus as the rest of the project sees it: publish, subscribe, request, append to the log, read the log.

A thin edge over nats-py that settles three things once: connecting fails fast and says why (nats-py alone retries bad
credentials in silence), appending reports what the log did, and reading survives a server that went away.
"""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import Any

from nats.aio.client import Client
from nats.aio.msg import Msg
from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from nats.errors import TimeoutError as NatsTimeout
from nats.js import JetStreamContext
from nats.js.api import AckPolicy, ConsumerConfig, DeliverPolicy
from nats.js.errors import APIError
from nats.micro.request import ERROR_HEADER

from oven_controller import telemetry
from oven_controller.credentials import Credentials, inbox_prefix
from oven_controller.errors import BusError, RefusedError
from oven_controller.events import Event
from oven_controller.names import log_stream

CONNECT_S = 3.0
HEARD_S = 0.5
"""The server says at once that nobody listens; who listens need not answer."""
SILENT_S = 3.0
"""A reader of the log that hears neither events nor heartbeats for so long makes a new consumer."""
LOOK_S = 0.5
"""How often it looks whether the connection was lost meanwhile."""
_WRONG_LAST_SEQUENCE = 10071


class AlreadyLoggedError(BusError):
    """The subject holds a message already (another replica was first)."""


class Bus:
    """A connection. Make one with `async with Bus.connect(url, credentials) as bus`."""

    def __init__(self, client: Client, name: str) -> None:
        self.client = client
        self.name = name
        self.errors: list[str] = []
        self.losses = 0
        """Times that the connection was lost. nats-py makes it anew and subscribes again; what was said meanwhile to a
        plain subscriber is lost to it, and whoever needs it asks `history`."""
        self.closed = asyncio.Event()
        """Set when it is closed for good: by `close`, or by an error after which nats-py does not try again."""

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
    ) -> AsyncIterator[Bus]:
        """Raises RefusedError when the server turns the credentials down, BusError when there is no server. `changed`
        is called when the connection is lost, is back, or is closed for good."""
        bus = await cls.open(url, credentials, name=name, timeout_s=timeout_s, changed=changed)
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
    ) -> Bus:
        who = credentials.name if credentials else name or "anonymous"
        client = Client()
        bus = cls(client, who)
        problems = bus.errors
        tell = changed or (lambda: None)

        async def note(error: Exception) -> None:
            problems.append(str(error) or type(error).__name__)
            del problems[:-50]

        async def lost() -> None:  # before it is made anew, so nothing is heard between the loss and its count
            bus.losses += 1
            tell()

        async def back() -> None:
            tell()

        async def ended() -> None:
            bus.closed.set()
            tell()

        options: dict[str, Any] = {
            "servers": [url],
            "name": name or who,
            "error_cb": note,
            "disconnected_cb": lost,
            "reconnected_cb": back,
            "closed_cb": ended,
            "inbox_prefix": inbox_prefix(who),
            "max_reconnect_attempts": -1,
            "reconnect_time_wait": 0.25,
            "connect_timeout": 1,
            "ping_interval": 5,
            "pending_size": 32 * 1024 * 1024,
        }
        if credentials:
            options["nkeys_seed_str"] = credentials.seed.decode()
        connecting = asyncio.create_task(client.connect(**options))
        deadline = asyncio.get_running_loop().time() + timeout_s
        while not connecting.done() and asyncio.get_running_loop().time() < deadline:
            if any("uthorization" in problem for problem in problems):
                break  # it would be tried again for ever, in silence
            await asyncio.wait({connecting}, timeout=0.05)
        if connecting.done() and connecting.exception() is None:
            return bus
        why = str(connecting.exception()) if connecting.done() else (problems[-1] if problems else "no answer")
        connecting.cancel()
        await asyncio.wait({connecting}, timeout=1)
        with contextlib.suppress(Exception):
            await asyncio.wait_for(client.close(), 1)
        if "uthorization" in why or any("uthorization" in problem for problem in problems):
            raise RefusedError(
                f"{url} refused the credentials of {who!r}; check --creds, or make a key for it with "
                "`oven-controller creds add NAME`"
            )
        raise BusError(
            f"no NATS server answers at {url} within {timeout_s:g} s ({why}); "
            "is the stack up? `oven-controller runs` lists what runs"
        )

    async def close(self) -> None:
        """Flush and close; a server that is gone does not hold it up."""
        with contextlib.suppress(Exception):
            if self.client.is_connected:
                await asyncio.wait_for(self.client.flush(), 1)
        with contextlib.suppress(Exception):
            await asyncio.wait_for(self.client.close(), 1)

    @property
    def jetstream(self) -> JetStreamContext:
        return self.client.jetstream(timeout=2)

    async def publish(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        """Core publish: no answer, and no error if nobody listens. While the server is away it is kept, up to 32 MiB,
        and sent when it is back. Raises BusError beyond that, or when the connection is closed for good."""
        try:
            await self.client.publish(subject, data, headers=headers)
        except (NatsError, OSError) as error:
            raise BusError(f"{subject} was not published: {error}") from error

    async def subscribe(self, subject: str, handle: Callable[[Msg], Awaitable[None]]) -> None:
        try:
            await self.client.subscribe(subject, cb=handle)
        except (NatsError, OSError) as error:
            raise BusError(f"cannot subscribe to {subject}: {error}") from error

    async def flush(self) -> None:
        try:
            await self.client.flush(2)
        except (NatsError, OSError) as error:
            raise BusError(f"the server did not answer a ping in 2 s: {error}") from error

    async def request(self, subject: str, data: bytes, timeout_s: float = 2.0) -> bytes:
        """The answer's body. Raises BusError when nobody answers in time, or a micro service answers with an error."""
        try:
            answer = await self.client.request(subject, data, timeout=timeout_s)
        except NoRespondersError as error:
            raise BusError(f"nobody answers on {subject}; does what should answer there run?") from error
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
        self, subject: str, data: bytes, *, message_id: str = "", once: bool = False, traceparent: str = ""
    ) -> int:
        """Append to the log and return the sequence. `once`: only if the subject is still empty (AlreadyLoggedError
        otherwise), however long ago the other copy came. Raises BusError when the log did not take it."""
        headers = telemetry.headers(traceparent) or {}
        if message_id:
            headers["Nats-Msg-Id"] = message_id
        if once:
            headers["Nats-Expected-Last-Subject-Sequence"] = "0"
        try:
            return (await self.jetstream.publish(subject, data, timeout=2, headers=headers or None)).seq
        except APIError as error:
            if error.err_code == _WRONG_LAST_SEQUENCE:
                raise AlreadyLoggedError(f"{subject} is in the log already") from error
            raise BusError(f"the log refused {subject}: {error.description} ({error.err_code})") from error
        except (TimeoutError, NatsError, OSError) as error:
            raise BusError(f"the log did not confirm {subject}: {str(error) or type(error).__name__}") from error

    async def head(self, run: str) -> int:
        """The log's last sequence."""
        try:
            info = await self.jetstream.stream_info(log_stream(run))
        except (TimeoutError, NatsError, OSError) as error:
            raise BusError(f"the log of run {run!r} cannot be read: {str(error) or type(error).__name__}") from error
        return int(info.state.last_seq)

    async def read(
        self, run: str, *, after: int = 0, until: int | None = None, subjects: list[str] | None = None
    ) -> AsyncIterator[Event]:
        """Events in the log's order from `after` (exclusive), live at the head; ends after sequence `until` if given.

        A push consumer without acknowledgements. A gap in its count, a connection that was lost (the consumer does not
        outlive its server), or three silent seconds (it sends a heartbeat each second), make a new one from the last
        event on: nothing is skipped and nothing comes twice.
        """
        last = after
        while until is None or last < until:
            await self._connected()
            inbox, losses, silent_s = self.client.new_inbox(), self.losses, 0.0
            subscription = await self.client.subscribe(inbox, pending_msgs_limit=65536)
            try:
                consumer, waiting = await self._consumer(run, inbox, last, subjects)
                if until is not None and not waiting:
                    return  # nothing that the filter lets through: no message would ever say so
                expected = 1
                while until is None or last < until:
                    try:
                        message = await asyncio.wait_for(subscription.next_msg(timeout=None), LOOK_S)
                    except (NatsError, TimeoutError):
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
                        continue
                    meta = message.metadata
                    if meta.sequence.consumer != expected:
                        break
                    expected += 1
                    last = meta.sequence.stream
                    if until is not None and last > until:
                        return
                    context = telemetry.carried(message.headers)
                    yield Event.read(last, message.subject, message.data, meta.timestamp, context)
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
            if self.client.is_closed:
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
