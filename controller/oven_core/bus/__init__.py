"""The NATS connection: publish messages, send requests, and append to and read a run's log.

Importing this package imports nats-py without aiohttp, which only ws:// and wss:// addresses need. Importing aiohttp
takes a third of a process's start-up time. `nats_client.allow_websockets` imports it later.
"""

import sys

if "nats" not in sys.modules and "aiohttp" not in sys.modules:
    sys.modules["aiohttp"] = None  # type: ignore[assignment]
    try:
        import nats.aio.transport  # noqa: F401
    finally:
        del sys.modules["aiohttp"]
