"""No aiohttp in a stack's processes, as in the base install. nats-py imports it where it is found, for websockets: a
third of the time in which a process starts."""

from __future__ import annotations

import sys

sys.modules["aiohttp"] = None  # type: ignore[assignment]
