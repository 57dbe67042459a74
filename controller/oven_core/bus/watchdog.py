"""A watchdog that aborts a silent connection, so that nats-py opens a new one.

A frozen or disconnected server neither answers nor closes the connection. nats-py then blocks. Its publisher waits on a
full socket, and its reconnection and pings wait for a close that the server never confirms (nats.py issue 671). So the
watchdog aborts the transport, and nats-py reconnects and subscribes again.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging

from oven_core.bus.nats_client import BusClient

log = logging.getLogger("oven.bus")

CHECK_INTERVAL_S = 0.5
MAX_SILENT_CHECKS = 4
"""Number of consecutive silent checks (2 s) after which the connection is aborted. With a limit in seconds, a process
that was itself frozen would abort its connection when it wakes up."""


async def watch(client: BusClient) -> None:
    """Ping the server until the client is closed, and abort the transport if neither a pong nor a message arrives.

    If nats-py has stopped reconnecting, close the client for good, so that its owner notices."""
    silent_checks, has_warned = 0, False
    writer, last_count, ping = client.socket_writer, _received_count(client), _Ping()
    while not client.is_closed:
        await asyncio.sleep(CHECK_INTERVAL_S)
        if (current_writer := client.socket_writer) is not writer:  # nats-py has opened a new connection
            writer, silent_checks, ping = current_writer, 0, _Ping()
        elif client.is_connected and (ping.is_answered or _received_count(client) != last_count):
            silent_checks = 0
        else:
            silent_checks += 1
        last_count = _received_count(client)
        if client.is_connected and not silent_checks:
            if has_warned:
                log.warning("the bus is answering again")
            has_warned = False
            if ping.is_answered:
                ping = _Ping(client)
        if silent_checks < MAX_SILENT_CHECKS:
            continue
        silent_checks = 0
        if client.is_connected:
            log.warning("the bus was silent for %g s; reconnecting", CHECK_INTERVAL_S * MAX_SILENT_CHECKS)
            has_warned = True
        abort(client)
        if client.is_connected:  # nats-py would not notice the abort if its reader has ended
            await client.drop_stale_connection()
        elif client.is_reconnecting and client.has_given_up:
            log.error("the connection to the bus could not be restored")
            with contextlib.suppress(Exception):
                async with asyncio.timeout(1):
                    await client.close()


def abort(client: BusClient) -> None:
    """End the connection without waiting for the server. Calls that are waiting in nats-py raise an error."""
    if (writer := client.socket_writer) is not None:
        with contextlib.suppress(AttributeError):  # raised by asyncio's TLS transport after it is closed
            writer.transport.abort()


class _Ping:
    """A ping that is sent in its own task, because sending may block. Without a client, none is sent or awaited.

    The task is never cancelled, because that would make nats-py's reader fail."""

    def __init__(self, client: BusClient | None = None) -> None:
        self._pong: asyncio.Future[bool] = asyncio.get_running_loop().create_future()
        self._sending = asyncio.create_task(self._send(client)) if client else None

    async def _send(self, client: BusClient) -> None:
        with contextlib.suppress(Exception):
            await client.ping(self._pong)

    @property
    def is_answered(self) -> bool:
        return self._sending is None or self._pong.done()


def _received_count(client: BusClient) -> int:
    return int(client.stats["in_msgs"])
