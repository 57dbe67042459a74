"""Exposure of a server that others can reach: whom it lets in, and who can listen on the way."""

from __future__ import annotations

import ssl

from oven_controller.bus.connection import Bus
from oven_controller.errors import BusError, ConfigError
from oven_controller.security import tls


async def checked(url: str, ca: str, trust: ssl.SSLContext | None) -> str:
    """What to warn of; empty if nothing. `url`: one server, or several with commas. Raises ConfigError for a
    server that lets anybody in, unless none but this machine can reach it. A server that does not answer is for anyone
    who connects in earnest to tell of."""
    found = [await _checked(one, ca, trust) for one in url.split(",")]
    return next((warning for warning in found if warning), "")


async def _checked(url: str, ca: str, trust: ssl.SSLContext | None) -> str:
    if ca and not url.startswith("tls://"):
        raise ConfigError(f"--tls-ca {ca} has no meaning with {url}: write tls:// where TLS is meant")
    if tls.is_loopback(tls.host_of(url)):
        return ""
    try:
        async with Bus.connect(url, name="anonymous", trust=trust):
            pass
    except BusError:
        return tls.open_to_readers(url)
    raise ConfigError(
        f"{url} accepts anybody: who reaches it could vote, decide and delete; give it users "
        "(`oven-controller creds server` makes them), or use a server on 127.0.0.1"
    )
