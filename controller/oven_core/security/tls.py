"""TLS for connections to the bus: trusted authorities, checks of addresses, and a warning if TLS is off."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
from pathlib import Path
from typing import TYPE_CHECKING, Final, NamedTuple
from urllib.parse import urlsplit

from oven_core.errors import ConfigError
from oven_core.files import read_file

if TYPE_CHECKING:  # slow to import, and not needed without a connection
    import ssl

ENVIRONMENT = "OVEN_TLS_CA"
"""Environment variable with the path of the trusted authority's file, for all processes of a run."""
SCHEMES: Final = ("nats", "tls", "ws", "wss")
"""Schemes of addresses that nats-py can connect to."""


class Certificate(NamedTuple):
    """A server's certificate and key, as PEM files. Only the owner can read the key."""

    certificate: Path
    key: Path


def trust_file(ca: str | Path) -> ssl.SSLContext:
    """Return a context that trusts only the authority in this PEM file. Raises ConfigError."""
    import ssl

    read_file(Path(ca), "the certificate authority")  # raises ConfigError for a pipe, which could block forever
    try:
        return ssl.create_default_context(cafile=str(ca))
    except ssl.SSLError as error:
        remedy = "use the authority that `creds server --tls` created"
        raise ConfigError(f"{ca} contains no certificate (PEM); {remedy}") from error
    except OSError as error:
        raise ConfigError(f"cannot read the certificate authority {ca}: {error.strerror}") from error


def trust_text(pem: str, source: str) -> ssl.SSLContext:
    """Return a context that trusts only this authority. `source` names its origin in errors. Raises ConfigError."""
    import ssl

    try:
        return ssl.create_default_context(cadata=pem)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"the authority in {source} is not a certificate (PEM); request a new file") from error


def from_environment() -> ssl.SSLContext | None:
    """Return the context for the authority in OVEN_TLS_CA, or None if it is not set. Raises ConfigError."""
    path = os.environ.get(ENVIRONMENT)
    return trust_file(path) if path else None


def is_loopback(host: str) -> bool:
    """Return whether a host name or address reaches only this machine. Return False if it cannot be resolved."""
    host = host.strip("[]")
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    import socket

    try:
        addresses = socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(socket_address[0]).is_loopback for *_, socket_address in addresses)


def host_of(url: str) -> str:
    """Return the host of an address, with or without a scheme."""
    return urlsplit(url if "://" in url else f"nats://{url}").hostname or ""


def redact(url: str) -> str:
    """Return the address without the part before an @, because messages must not contain a password."""
    return re.sub(r"[^/,\s]*@", "", url)


def checked_addresses(url: str) -> list[str]:
    """Return the servers in `url`, which commas separate.

    Raises ConfigError for a server with a user or a password, and for text that is not an address."""
    servers = [server.strip() for server in url.split(",")]
    for server in servers:
        if "@" in server:
            raise ConfigError(
                f"the address {redact(server)} has a user or a password, but the bus identifies clients by keys: "
                "remove the part before the @, and pass the key with --creds FILE"
            )
        try:
            parts = urlsplit(server if "://" in server else f"nats://{server}")
            is_valid = parts.scheme in SCHEMES and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:
            is_valid = False
        if not is_valid:
            raise ConfigError(f"{server!r} is not a server's address; write e.g. tls://bus.example:4222")
    return servers


def plaintext_warning(url: str) -> str:
    """Return a warning if the address is on another machine and has no TLS, otherwise an empty string."""
    if urlsplit(url).scheme in ("tls", "wss") or is_loopback(host_of(url)):
        return ""
    return (
        f"{url} is on another machine and the connection has no TLS: keys are never sent, but anyone on the network "
        "can read every message and alter votes; use tls:// (`oven-controller creds server --tls`) or a private network"
    )
