"""A watchdog that aborts a silent connection, so that nats-py opens a new one.

A frozen or disconnected server neither answers nor closes the connection. nats-py then blocks: its publisher waits on a
full socket, and its reconnection and pings wait for a close that the server never confirms (nats.py issue 671). So the
watchdog aborts the transport. nats-py then reconnects and subscribes again by itself.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
from typing import Any

from nats.aio.client import Client
from nats.errors import StaleConnectionError

log = logging.getLogger("oven.bus")

LOOK_S = 0.5
SILENT_LOOKS = 4
"""Silent checks in a row, 2 s, after which the connection is aborted. Checks are counted instead of seconds, so that a
process that was itself frozen or starved does not blame its server when it wakes."""


async def watch(client: Client) -> None:
    """Ping the server until the client is closed, and abort the transport if neither a pong nor a message comes. A
    client whose reconnection ended without a connection is closed for good, so that its owner notices."""
    silent, warned = 0, False
    writer, received, ping = _writer(client), _received(client), _Ping()
    while not client.is_closed:
        await asyncio.sleep(LOOK_S)
        if (current := _writer(client)) is not writer:
            writer, silent, ping = current, 0, _Ping()
        elif client.is_connected and (ping.answered or _received(client) != received):
            silent = 0
        else:
            silent += 1
        received = _received(client)
        if client.is_connected and not silent:
            if warned:
                log.warning("the bus answers again")
            warned = False
            ping = ping if ping.waits else _Ping(client)
        if silent < SILENT_LOOKS:
            continue
        silent = 0
        if client.is_connected:
            log.warning("the bus was silent for %g s: reconnecting", LOOK_S * SILENT_LOOKS)
            warned = True
        abort(client)
        if client.is_connected:  # its reader may have ended and would not notice the abort
            await client._process_op_err(StaleConnectionError())
        elif client.is_reconnecting and _gave_up(client):
            log.error("the connection to the bus could not be restored")
            with contextlib.suppress(Exception):
                async with asyncio.timeout(1):
                    await client.close()


def abort(client: Client) -> None:
    """End the connection without waiting for the server. Calls that wait in nats-py continue with an error."""
    if (writer := _writer(client)) is not None:
        with contextlib.suppress(AttributeError):  # asyncio's TLS transport, once it is closed
            writer.transport.abort()


class _Ping:
    """One ping in its own task, because sending may block. A cancelled ping would make nats-py's reader fail."""

    def __init__(self, client: Client | None = None) -> None:
        self._pong: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._sending = asyncio.create_task(self._send(client)) if client else None

    async def _send(self, client: Client) -> None:
        with contextlib.suppress(Exception):
            await client._send_ping(self._pong)

    @property
    def answered(self) -> bool:
        return self._sending is None or self._pong.done()

    @property
    def waits(self) -> bool:
        return not self.answered


def _writer(client: Client) -> Any:
    return getattr(client._transport, "_io_writer", None)


def _received(client: Client) -> int:
    return int(client.stats["in_msgs"])


def _gave_up(client: Client) -> bool:
    return client._reconnection_task is not None and client._reconnection_task.done()
