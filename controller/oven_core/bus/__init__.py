"""The connection to NATS, through which processes publish messages, send requests, and read and write the log.

Importing this package imports nats-py without aiohttp, which only ws:// and wss:// addresses need. Importing aiohttp
takes a third of a process's start-up time, and 8 MB. `nats_client.allow_websockets` imports it if necessary. Other
packages import nats-py's names from here, because nats-py must not be imported before this package.
"""

import sys

_hides_aiohttp = "nats" not in sys.modules and "aiohttp" not in sys.modules
if _hides_aiohttp:
    sys.modules["aiohttp"] = None  # type: ignore[assignment]
try:
    from nats.aio.msg import Msg
    from nats.errors import Error as NatsError
    from nats.errors import MaxPayloadError
    from nats.micro import add_service
    from nats.micro.request import Request, ServiceError
    from nats.micro.service import ServiceConfig
finally:
    if _hides_aiohttp:
        del sys.modules["aiohttp"]

__all__ = ["MaxPayloadError", "Msg", "NatsError", "Request", "ServiceConfig", "ServiceError", "add_service"]
