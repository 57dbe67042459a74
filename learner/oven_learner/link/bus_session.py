"""A sequence of connections to the bus, for the writer and the reader of a run's log."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from oven_core.bus.connection import CONNECT_S, PATIENT_S, Bus
from oven_core.cancellation import end
from oven_core.errors import BusError
from oven_core.security.credentials import Credentials
from oven_learner.link.log_reader import LogReader
from oven_learner.link.log_writer import RETRY_MOST_S, RETRY_S, LogWriter, OutageLog

OPEN_S = 30.0
"""The log counts as unreadable after this time without any event of earlier incarnations."""
TURN_S = 0.5
SILENT_TURNS = 3
"""Turns without an answer after which the connection is closed. The server is pinged each turn, so this takes up to 2
s. Turns are counted instead of seconds, so that a learner that was suspended itself counts one turn and does not blame
the server."""
HANGING_TURNS = 20
"""Maximum turns of one call while pings are answered: a log that elects a leader needs seconds."""


class BusSession:
    """Connects the writer and the reader until everything is sent.

    nats-py never reconnects in this session. A lost, silent or stuck connection is closed, and a new one is opened.
    The writer then checks whether the log has the message in flight.
    """

    def __init__(
        self,
        url: str,
        run: str,
        credentials: Credentials | None,
        writer: LogWriter,
        reader: LogReader,
        outages: OutageLog,
        further_tasks: Sequence[Callable[[Bus], Awaitable[object]]] = (),
    ) -> None:
        """`further_tasks` also use each connection. They run until they are cancelled."""
        self._url, self._run, self._credentials = url, run, credentials
        self._writer, self._reader, self._outages = writer, reader, outages
        self._further_tasks = further_tasks

    async def open(self, begin: Callable[[Bus], Awaitable[object]]) -> Bus:
        """Return the first connection, after `begin` has read the log. Raises OvenError, and BusError
        if the log is silent."""
        connections: list[Bus] = []

        async def connect_and_begin() -> None:
            connections.append(await self._connect(PATIENT_S))
            await begin(connections[0])

        beginning, last_progress = asyncio.create_task(connect_and_begin()), -1
        try:
            while not (await asyncio.wait({beginning}, timeout=OPEN_S))[0]:
                if self._reader.progress == last_progress:
                    raise BusError(
                        f"the log of run {self._run!r} on {self._url} cannot be read: silent for {OPEN_S:g} s"
                    )
                last_progress = self._reader.progress
            beginning.result()
        except BaseException:
            for bus in connections:
                await bus.abort()
            await end(beginning, within_s=1)
            raise
        return connections[0]

    async def run(self, bus: Bus) -> None:
        """Write and read, on `bus` and on its successors, until everything is sent. Cancel it to give up."""
        while True:
            why = await self._use(bus)
            if self._writer.finished:
                return
            bus = await self._reconnect(why)

    async def _connect(self, timeout_s: float = CONNECT_S) -> Bus:
        return await Bus.open(self._url, self._credentials, name="learner", timeout_s=timeout_s, reconnect=False)

    async def _use(self, bus: Bus) -> BaseException:
        """Write and read until everything is sent or the connection fails. Return why it failed, after closing it."""
        coroutines = (self._watch, self._writer.run, self._reader.run, *self._further_tasks)
        tasks = [asyncio.ensure_future(coroutine(bus)) for coroutine in coroutines]
        why: BaseException = BusError(f"the connection to {self._url} is lost")
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if bus.connected:
                why = next((error for task in tasks if task.done() and (error := task.exception())), why)
            if self._writer.finished:
                await bus.close()
        finally:
            await bus.abort()  # first, because tasks that wait for the server cannot be cancelled before
            await end(*tasks, within_s=1)
        return why

    async def _reconnect(self, why: BaseException) -> Bus:
        """Return a new connection, without a timeout."""
        self._outages.record(why, self._writer.unsent)
        await asyncio.sleep(RETRY_S)  # limits the rate of connections that fail right after they are opened
        pause = RETRY_S
        while True:
            try:
                return await self._connect()
            except (BusError, OSError) as error:
                self._outages.record(error, self._writer.unsent)
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_MOST_S)

    async def _watch(self, bus: Bus) -> None:
        """Return when the connection is lost, and raise BusError when the server is silent or a call hangs."""
        silent = hanging = calls = 0
        ping = asyncio.create_task(bus.flush(60))
        try:
            while not await _set_within(TURN_S, bus.closed):
                silent = 0 if ping.done() else silent + 1
                hanging = hanging + 1 if self._writer.calls % 2 and self._writer.calls == calls else 0
                calls = self._writer.calls
                if silent >= SILENT_TURNS:
                    raise BusError(f"{self._url} is silent: no answer to a ping within {silent * TURN_S:g} s")
                if hanging >= HANGING_TURNS:
                    raise BusError(f"{self._url} answers pings, and a call hangs for {hanging * TURN_S:g} s")
                if ping.done():
                    ping.result()
                    ping = asyncio.create_task(bus.flush(60))
        finally:
            await end(ping, within_s=1)


async def _set_within(limit_s: float, event: asyncio.Event) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            return await event.wait()
    return False
