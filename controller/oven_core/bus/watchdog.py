"""Watchdog of a connection: one that has gone silent is aborted, and made anew.

A server that is frozen, or cut off, neither answers nor hangs up. nats-py then blocks: its publisher in a full socket,
its reconnection in the wait for a close that the peer never confirms (nats.py issue 671), and its own pings end in that
same wait. So the transport is aborted from outside, after which nats-py connects anew and subscribes again by itself.
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
"""So many looks in a row at which nothing had been heard: 2 s. Looks are counted and not the clock, so that a process
which was itself frozen, or starved, does not blame its server on waking."""


async def watch(client: Client) -> None:
    """Until the client is closed: ping it, and abort its transport when neither a pong nor a message comes.

    A client whose reconnection ended without a connection is closed for good, so that its owner hears of it.
    """
    silent, told = 0, False
    writer, received, ping = _writer(client), _received(client), _Ping()
    while not client.is_closed:
        await asyncio.sleep(LOOK_S)
        if (now := _writer(client)) is not writer:
            writer, silent, ping = now, 0, _Ping()
        elif client.is_connected and (ping.answered or _received(client) != received):
            silent = 0
        else:
            silent += 1
        received = _received(client)
        if client.is_connected and not silent:
            if told:
                log.warning("the bus answers again")
            told = False
            ping = ping if ping.waits else _Ping(client)
        if silent < SILENT_LOOKS:
            continue
        silent = 0
        if client.is_connected:
            log.warning("the bus has said nothing for %g s: the connection is made anew", LOOK_S * SILENT_LOOKS)
            told = True
        abort(client)
        if client.is_connected:  # its reader may have ended, and would not see the abort
            await client._process_op_err(StaleConnectionError())
        elif client.is_reconnecting and _gave_up(client):
            log.error("the connection to the bus could not be made anew")
            with contextlib.suppress(Exception):
                async with asyncio.timeout(1):
                    await client.close()


def abort(client: Client) -> None:
    """End the connection without waiting for the peer; anyone who waits for it in nats-py continues with an error."""
    if (writer := _writer(client)) is not None:
        with contextlib.suppress(AttributeError):  # asyncio's TLS transport, once it is closed
            writer.transport.abort()


class _Ping:
    """One ping, in its own task: sending it may block. Never cancelled: nats-py's reader would die of its pong."""

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
