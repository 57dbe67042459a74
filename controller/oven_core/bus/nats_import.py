"""nats-py imported without aiohttp: a third of the time in which a process of the stack starts."""

from __future__ import annotations

import sys
from typing import Any

from oven_core.errors import ConfigError


def import_nats() -> None:
    """Import nats-py. Where it finds aiohttp it would import that, too, which only ws:// and wss:// need."""
    if "nats" in sys.modules or "aiohttp" in sys.modules:
        return
    sys.modules["aiohttp"] = None  # type: ignore[assignment]
    try:
        import nats.aio.transport  # noqa: F401
    finally:
        del sys.modules["aiohttp"]


def allow_websockets() -> None:
    """Give nats-py the aiohttp that `import_nats` kept from it. Raises ConfigError where it is not installed."""
    import nats.aio.transport

    transport: Any = nats.aio.transport
    try:
        import aiohttp
    except ImportError as error:
        raise ConfigError("an address with ws:// or wss:// needs the package aiohttp: pip install aiohttp") from error
    transport.aiohttp = aiohttp
