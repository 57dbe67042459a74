"""TLS of a connection: which authority it trusts, and what to warn of where there is no TLS."""

from __future__ import annotations

import contextlib
import ipaddress
import os
import re
import socket
import ssl
from pathlib import Path
from typing import Final
from urllib.parse import urlsplit

from oven_core.errors import ConfigError
from oven_core.files import read_file

ENVIRONMENT = "OVEN_TLS_CA"
"""Names the file for every process of a run."""
SCHEMES: Final = ("nats", "tls", "ws", "wss")
"""What nats-py connects to."""


def trusting(ca: str | Path) -> ssl.SSLContext:
    """A context that takes certificates of this authority (PEM) and of no other. Raises ConfigError."""
    read_file(Path(ca), "the certificate authority")  # a pipe would be waited for
    try:
        return ssl.create_default_context(cafile=str(ca))
    except ssl.SSLError as error:
        raise ConfigError(
            f"{ca} holds no certificate (PEM); give the authority's, which `creds server --tls` made"
        ) from error
    except OSError as error:
        raise ConfigError(f"cannot read the certificate authority {ca}: {error.strerror}") from error


def trusting_text(pem: str, source: str) -> ssl.SSLContext:
    """The same of the authority's text; `source` is named where it holds none. Raises ConfigError."""
    try:
        return ssl.create_default_context(cadata=pem)
    except (ssl.SSLError, ValueError) as error:
        raise ConfigError(f"the authority in {source} is not a certificate (PEM); ask for the file again") from error


def from_environment() -> ssl.SSLContext | None:
    path = os.environ.get(ENVIRONMENT)
    return trusting(path) if path else None


def is_loopback(host: str) -> bool:
    """Whether a name or an address means this machine and no other. One that cannot be resolved does not."""
    host = host.strip("[]")
    with contextlib.suppress(ValueError):
        return ipaddress.ip_address(host).is_loopback
    try:
        found = socket.getaddrinfo(host, None)
    except (OSError, UnicodeError):
        return False
    return all(ipaddress.ip_address(entry[4][0]).is_loopback for entry in found)


def host_of(url: str) -> str:
    return urlsplit(url if "://" in url else f"nats://{url}").hostname or ""


def shown(url: str) -> str:
    """The address without what stands before an @: a password belongs in no message."""
    return re.sub(r"[^/,\s]*@", "", url)


def checked_addresses(url: str) -> list[str]:
    """The servers of an address, which has one or several with commas. Raises ConfigError for one with a user or a
    password, and for what is not an address."""
    servers = [server.strip() for server in url.split(",")]
    for server in servers:
        if "@" in server:
            raise ConfigError(
                f"the address {shown(server)} was given with a user or a password, and the bus knows everybody by a "
                "key: leave out all before the @, and name the key by --creds FILE"
            )
        try:
            parts = urlsplit(server if "://" in server else f"nats://{server}")
            known = parts.scheme in SCHEMES and bool(parts.hostname) and (parts.port is None or parts.port > 0)
        except ValueError:
            known = False
        if not known:
            raise ConfigError(f"{server!r} is not a server's address; write e.g. tls://bus.example:4222")
    return servers


def open_to_readers(url: str) -> str:
    """What to say of an address over which others can read and alter along the way; empty if they cannot."""
    if urlsplit(url).scheme in ("tls", "wss") or is_loopback(host_of(url)):
        return ""
    return (
        f"{url} is another machine and the connection has no TLS: no key is ever sent, but anyone in between can "
        "read every message and alter votes; use tls:// (`oven-controller creds server --tls`) or your own network"
    )
