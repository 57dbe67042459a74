"""The connection to NATS, through which processes publish messages, send requests, and read and write the log.

Importing this package imports nats-py without aiohttp, which only ws:// and wss:// addresses need. Importing aiohttp
takes a third of a process's start-up time. `nats_client.allow_websockets` imports it if necessary.
"""

import sys

if "nats" not in sys.modules and "aiohttp" not in sys.modules:
    sys.modules["aiohttp"] = None  # type: ignore[assignment]
    try:
        import nats.aio.transport  # noqa: F401
    finally:
        del sys.modules["aiohttp"]
