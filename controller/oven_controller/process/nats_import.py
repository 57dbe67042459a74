"""The first import of nats-py, without aiohttp: a third of the time in which a process of the stack starts."""

from __future__ import annotations

import sys


def import_nats() -> None:
    """Import nats-py. Where it finds aiohttp it would import that, too, for ws:// addresses, which nothing here has."""
    if "nats" in sys.modules or "aiohttp" in sys.modules:
        return
    sys.modules["aiohttp"] = None  # type: ignore[assignment]
    try:
        import nats.aio.transport  # noqa: F401
    finally:
        del sys.modules["aiohttp"]
