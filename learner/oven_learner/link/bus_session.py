"""Keeps the writer and the reader of a run's log connected to the bus, across reconnections."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Awaitable, Callable, Sequence

from oven_core.bus.connection import CONNECT_TIMEOUT_S, PATIENT_CONNECT_TIMEOUT_S, Bus
from oven_core.cancellation import end
from oven_core.errors import BusError
from oven_core.security.credentials import Credentials
from oven_learner.link.log_reader import LogReader
from oven_learner.link.log_writer import MAX_RETRY_S, RETRY_S, LogWriter
from oven_learner.link.outbox import OutageLog

OPEN_TIMEOUT_S = 30.0
"""Seconds without an event from the log after which opening it fails."""
CHECK_INTERVAL_S = 0.5
"""Seconds between two checks of the connection."""
MAX_SILENT_CHECKS = 3
"""Number of consecutive checks without an answer to a ping before the connection is closed. Checks are counted instead
of seconds, so that the time during which the learner itself is suspended counts as only one check."""
MAX_STUCK_CHECKS = 20
"""Number of consecutive checks with the same call still running before the connection is closed. During this time, the
servers can elect a leader, for which a call has to wait."""
PING_TIMEOUT_S = 60.0


class BusSession:
    """Connects the writer and the reader until everything is sent. Instead of nats-py's own reconnection, the session
    closes a lost, silent or stuck connection and opens a new one. The writer then checks which messages in flight the
    log has received."""

    def __init__(
        self,
        url: str,
        run: str,
        credentials: Credentials | None,
        writer: LogWriter,
        reader: LogReader,
        outages: OutageLog,
        extra_tasks: Sequence[Callable[[Bus], Awaitable[object]]] = (),
    ) -> None:
        """`extra_tasks` also use each connection. They run until they are cancelled."""
        self._url, self._run, self._credentials = url, run, credentials
        self._writer, self._reader, self._outages = writer, reader, outages
        self._extra_tasks = extra_tasks

    async def open(self, begin: Callable[[Bus], Awaitable[object]]) -> Bus:
        """Return the first connection, after `begin` has read the log. Raises OvenError if this fails or times out."""
        connections: list[Bus] = []

        async def connect_and_begin() -> None:
            connections.append(await self._connect(PATIENT_CONNECT_TIMEOUT_S))
            await begin(connections[0])

        opening, last_progress = asyncio.create_task(connect_and_begin()), -1
        try:
            while not opening.done():
                await asyncio.wait({opening}, timeout=OPEN_TIMEOUT_S)
                if not opening.done() and self._reader.progress == last_progress:
                    raise BusError(
                        f"cannot read the log of run {self._run!r} on {self._url}: no event within {OPEN_TIMEOUT_S:g} s"
                    )
                last_progress = self._reader.progress
            opening.result()
        except BaseException:
            for bus in connections:
                await bus.abort()
            await end(opening, limit_s=1)
            raise
        return connections[0]

    async def run(self, bus: Bus) -> None:
        """Write and read until everything is sent. Reconnect if the connection fails. Cancel the call to give up."""
        while True:
            failure = await self._use(bus)
            if self._writer.is_finished:
                return
            bus = await self._reconnect(failure)

    async def _connect(self, timeout_s: float = CONNECT_TIMEOUT_S) -> Bus:
        return await Bus.open(self._url, self._credentials, name="learner", timeout_s=timeout_s, reconnect=False)

    async def _use(self, bus: Bus) -> BaseException:
        """Write and read until everything is sent or the connection fails. Close it, and return the reason."""
        coroutines = (self._watch, self._writer.run, self._reader.run, *self._extra_tasks)
        tasks = [asyncio.ensure_future(coroutine(bus)) for coroutine in coroutines]
        failure: BaseException = BusError(f"the connection to {self._url} was lost")
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if bus.is_connected:
                failure = next((error for task in tasks if task.done() and (error := task.exception())), failure)
            if self._writer.is_finished:
                await bus.close()
        finally:
            await bus.abort()  # first, because only then can tasks that are waiting for the server be cancelled
            await end(*tasks, limit_s=1)
        return failure

    async def _reconnect(self, failure: BaseException) -> Bus:
        """Keep trying to connect, without a timeout, and return the new connection."""
        self._outages.record(failure, self._writer.unsent)
        await asyncio.sleep(RETRY_S)  # limits the rate if connections fail right after they are opened
        pause = RETRY_S
        while True:
            try:
                return await self._connect()
            except (BusError, OSError) as error:
                self._outages.record(error, self._writer.unsent)
                await asyncio.sleep(pause)
                pause = min(2 * pause, MAX_RETRY_S)

    async def _watch(self, bus: Bus) -> None:
        """Return when the connection is lost. Raises BusError if the server is silent or a call is stuck."""
        silent_checks = stuck_checks = calls = 0
        ping = asyncio.create_task(bus.flush(PING_TIMEOUT_S))
        try:
            while not await _wait_for_event(bus.closed, CHECK_INTERVAL_S):
                silent_checks = 0 if ping.done() else silent_checks + 1
                is_in_call = self._writer.calls % 2 == 1
                is_same_call = is_in_call and self._writer.calls == calls  # as at the last check
                stuck_checks = stuck_checks + 1 if is_same_call else 0
                calls = self._writer.calls
                if silent_checks >= MAX_SILENT_CHECKS:
                    seconds = silent_checks * CHECK_INTERVAL_S
                    raise BusError(f"{self._url} did not answer a ping within {seconds:g} s")
                if stuck_checks >= MAX_STUCK_CHECKS:
                    seconds = stuck_checks * CHECK_INTERVAL_S
                    raise BusError(f"{self._url} answers pings, but a call has been stuck for {seconds:g} s")
                if ping.done():
                    ping.result()
                    ping = asyncio.create_task(bus.flush(PING_TIMEOUT_S))
        finally:
            await end(ping, limit_s=1)


async def _wait_for_event(event: asyncio.Event, timeout_s: float) -> bool:
    with contextlib.suppress(TimeoutError):
        async with asyncio.timeout(timeout_s):
            return await event.wait()
    return False
