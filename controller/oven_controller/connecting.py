"""What nats-py leaves open about a first connection: a tls:// address that means it, and failures that are final."""

from __future__ import annotations

import ssl
from typing import Any

from nats.aio.client import Client
from nats.errors import AuthorizationError
from nats.errors import Error as NatsError

from oven_controller.errors import BusError, RefusedError

_REFUSALS = ("authorization violation", "authentication expired", "authentication revoked")
"""What nats-server 2.15 says of credentials that it does not take (server/errors.go)."""


class _NoTlsError(NatsError):
    def __str__(self) -> str:
        return "the server offers no TLS"


class TlsClient(Client):
    """nats-py, and a tls:// address that means it: whoever stands between could otherwise say that there is no TLS."""

    async def _process_info(self, info: dict[str, Any], initial_connection: bool = False) -> None:
        server = self._current_server
        if initial_connection and server and server.uri.scheme == "tls" and not info.get("tls_required"):
            raise _NoTlsError
        await super()._process_info(info, initial_connection)


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
