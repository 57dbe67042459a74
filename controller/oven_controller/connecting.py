"""What nats-py leaves open about a first connection: a tls:// address that means it, and failures that are final."""

from __future__ import annotations

import asyncio
import ssl
from typing import Any

from nats.aio.client import Client
from nats.aio.transport import TcpTransport
from nats.errors import AuthorizationError, ConnectionClosedError, NoRespondersError
from nats.errors import Error as NatsError

from oven_controller.errors import BusError, RefusedError

_REFUSALS = ("authorization violation", "authentication expired", "authentication revoked")
"""What nats-server 2.15 says of credentials that it does not take (server/errors.go)."""
_NO_RESPONDERS = b"NATS/1.0 503"


class _NoTlsError(NatsError):
    def __str__(self) -> str:
        return "the server offers no TLS"


class BusClient(Client):
    """nats-py with two things settled: a tls:// address means it (whoever stands between could otherwise say that there
    is no TLS), and `asked`, a request with fewer turns of the event loop, for what goes out once a step."""

    def __init__(self) -> None:
        super().__init__()
        self._answers = ""
        self._answers_sid = 0
        self._count = 0
        self._waiting: dict[bytes, asyncio.Future[bytes]] = {}
        self._at_once = False

    async def asked(self, subject: str, data: bytes, headers: dict[str, str], timeout_s: float) -> bytes:
        """The answer's body. It is written to the socket at once, without the flusher, and the answer is handed over by
        the reader itself, without a queue and a task. Raises TimeoutError, NoRespondersError and other NatsError."""
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
            self._at_once = True
            try:
                await self._send_publish(subject, inbox, data, len(data), headers)
            finally:
                self._at_once = False
            return await answer
        finally:
            timer.cancel()
            self._waiting.pop(inbox.encode(), None)

    async def _flush_pending(self, force_flush: bool = False) -> Any:
        transport = self._transport
        if not self._at_once or force_flush or not self.is_connected or not isinstance(transport, TcpTransport):
            return await super()._flush_pending(force_flush)
        pending, self._pending, self._pending_data_size = self._pending, [], 0
        transport.writelines(pending)  # type: ignore[no-untyped-call]
        return None

    async def _process_msg(self, sid: int, subject: bytes, reply: bytes, data: bytes, headers: bytes) -> None:
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

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        server = self._current_server
        if initial_connection and server and server.uri.scheme == "tls" and not info.get("tls_required"):
            raise _NoTlsError
        await super()._process_info(info, initial_connection)


def _late(answer: asyncio.Future[bytes]) -> None:
    if not answer.done():
        answer.set_exception(TimeoutError("no answer"))


def final(error: Exception, url: str, who: str) -> BusError | None:
    """What this failure to connect means if trying again does not mend it. Told by type and by the server's own words,
    of which a subject or a name could hold a part."""
    if isinstance(error, ssl.SSLCertVerificationError):
        return RefusedError(
            f"the certificate of {url} is not trusted ({error.verify_message or error}); give the authority that "
            "signed it: --tls-ca FILE, or OVEN_TLS_CA in a process of its own"
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
