"""One connection to the bus after another, for the writer and the reader of a run's log."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from oven_core.bus.connection import CONNECT_S, PATIENT_S, Bus
from oven_core.cancellation import end
from oven_core.errors import BusError
from oven_core.security.credentials import Credentials
from oven_learner.link.log_reader import LogReader
from oven_learner.link.log_writer import RETRY_MOST_S, RETRY_S, LogWriter
from oven_learner.link.outage_log import OutageLog

OPEN_S = 30.0
"""Without one event read of what earlier incarnations left, the log counts as unreadable."""
TURN_S = 0.5
SILENT_TURNS = 3
"""The server is asked for a sign of life each turn; one that gives none for so many is given up, so within 2 s of its
last word. Turns and not seconds: a learner that was stopped itself counts one, and accuses no one."""
HANGING_TURNS = 20
"""So long one call may take while signs of life come: a log that elects a leader needs seconds."""


class BusSession:
    """Connects the writer and the reader, until everything is sent.

    It never lets nats-py reconnect: a connection that is lost, silent or stuck is cut off and another is made. What was
    under way then may be in the log or not: that is the writer's to find out.
    """

    def __init__(
        self,
        url: str,
        run: str,
        credentials: Credentials | None,
        writer: LogWriter,
        reader: LogReader,
        outages: OutageLog,
        besides: Sequence[Callable[[Bus], Awaitable[object]]] = (),
    ) -> None:
        """`besides`: what else uses a connection while there is one; it runs until it is cancelled."""
        self._url, self._run, self._credentials = url, run, credentials
        self._writer, self._reader, self._outages, self._besides = writer, reader, outages, besides

    async def open(self, begin: Callable[[Bus], Awaitable[object]]) -> Bus:
        """The first connection, once `begin` has read there what it needs of the log. Raises OvenError; BusError when
        the log is silent."""
        opened: list[Bus] = []

        async def begun() -> None:
            opened.append(await self._connect(PATIENT_S))
            await begin(opened[0])

        beginning, seen = asyncio.create_task(begun()), -1
        try:
            while not (await asyncio.wait({beginning}, timeout=OPEN_S))[0]:
                if self._reader.progress == seen:
                    raise BusError(
                        f"the log of run {self._run!r} on {self._url} cannot be read: silent for {OPEN_S:g} s"
                    )
                seen = self._reader.progress
            beginning.result()
        except BaseException:
            for bus in opened:
                await bus.abort()
            await end(beginning, within_s=1)
            raise
        return opened[0]

    async def run(self, bus: Bus) -> None:
        """Write and read, on `bus` and on those that take its place, until everything is sent. Cancel it to give up."""
        while True:
            why = await self._use(bus)
            if self._writer.finished:
                return
            bus = await self._reconnected(why)

    async def _connect(self, timeout_s: float = CONNECT_S) -> Bus:
        return await Bus.open(self._url, self._credentials, name="learner", timeout_s=timeout_s, reconnect=False)

    async def _use(self, bus: Bus) -> BaseException:
        """Write and read, until everything is sent or this connection is no good any more; returns why it is not.
        Nothing is left of it then."""
        works = (self._watch, self._writer.run, self._reader.run, *self._besides)
        tasks = [asyncio.ensure_future(work(bus)) for work in works]
        why: BaseException = BusError(f"the connection to {self._url} is lost")
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if bus.connected:
                why = next((error for task in tasks if task.done() and (error := task.exception())), why)
            if self._writer.finished:
                await bus.close()
        finally:
            await bus.abort()  # first: what waits for the server cannot be cancelled before
            await end(*tasks, within_s=1)
        return why

    async def _reconnected(self, why: BaseException) -> Bus:
        """A new connection, however long that takes."""
        self._outages.record(why, self._writer.unsent)
        await asyncio.sleep(RETRY_S)  # one that works and fails at once must not be made a thousand times
        pause = RETRY_S
        while True:
            try:
                return await self._connect()
            except (BusError, OSError) as error:
                self._outages.record(error, self._writer.unsent)
                await asyncio.sleep(pause)
                pause = min(2 * pause, RETRY_MOST_S)

    async def _watch(self, bus: Bus) -> None:
        """Come back when the connection is lost, and raise BusError when it is of no use."""
        silent = hanging = calls = 0
        ping = asyncio.create_task(bus.flush(60))
        try:
            while not await _within(TURN_S, bus.closed):
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


async def _within(limit_s: float, event: asyncio.Event) -> bool:
    """Whether it is set before the limit."""
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(limit_s):
            return await event.wait()
    return False
