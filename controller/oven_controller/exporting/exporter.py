"""Follow the log of one run and pass its rows to one target, which gets each row once.

The exporter reads the log with the monitor's key, from its beginning at each start, because rows depend on earlier
events. It continues after the last row that the target has. If the target fails, the exporter stops reading the log and
tries again with back-off. Nothing else waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable
from functools import partial
from typing import Final, TypeVar

from oven_controller.exporting import export_state
from oven_controller.exporting.export_state import ExportState
from oven_controller.exporting.log_follower import follow_log
from oven_controller.exporting.target import Target
from oven_core.cancellation import end, on_termination
from oven_core.errors import ConfigError, ProcessError, reason
from oven_core.terminal_text import shorten
from oven_runs.access.local_run import LocalRun
from oven_runs.access.run_access import is_ended_after
from oven_runs.log.export_rows import Row, Rows

log = logging.getLogger("oven.export")

FIRST_RETRY_S: Final = 1.0
MAX_RETRY_S: Final = 60.0
GIVE_UP_S: Final = 60.0
"""Seconds of failures after which the export of a run that is down ends. The next `export` continues."""
LAST_READ_TIMEOUT_S: Final = 1.5
"""Timeout in seconds for the last read of the log when the stack stops."""
LAST_WRITE_TIMEOUT_S: Final = 2.5
"""Timeout in seconds for the last write when the stack stops. The stack waits 5 s for this process to exit."""
_QUEUE_ROWS: Final = 20_000
_Result = TypeVar("_Result")


async def run_exporter(access: LocalRun, name: str, target: Target) -> int:
    """Export the run until it is over, or until a signal. Return the number of rows that were written by this call.

    Raises ConfigError if the target refuses the run, and ProcessError if it fails for GIVE_UP_S while the run is down.
    """
    stop = asyncio.Event()
    on_termination(stop.set)
    return await _Exporter(access, name, target).run(stop)


class _Exporter:
    def __init__(self, access: LocalRun, name: str, target: Target) -> None:
        self._access, self._name, self._target = access, name, target
        self._state = ExportState(destination=target.destination)
        self._queue: asyncio.Queue[Row] = asyncio.Queue(_QUEUE_ROWS)
        self._read_done = asyncio.Event()  # set when the end of the log was reached
        self._events: list[Row] = []  # all rows with an event so far
        self._stop = asyncio.Event()
        self._written_count = 0
        self._has_ended = False
        self._has_failed = False  # whether the last write failed

    async def run(self, stop: asyncio.Event) -> int:
        self._stop = stop
        folder = self._access.folder.path
        saved = export_state.load(folder, self._name)
        if saved.destination == self._target.destination:
            self._state = saved
        self._save()  # the stack waits for this file when it restarts the exporter
        stop_task = asyncio.create_task(stop.wait(), name="stop")
        try:
            await self._open(stop_task)
            await self._export(stop_task)
        finally:
            await end(stop_task)
        await asyncio.to_thread(self._target.close, self._has_ended)
        return self._written_count

    async def _export(self, stop_task: asyncio.Task[bool]) -> None:
        """Follow the log and write its rows until both are done, or until this process has to end."""
        follow_task = asyncio.create_task(self._follow(), name="follow")
        write_task = asyncio.create_task(self._write_rows(follow_task), name="write")
        try:
            await asyncio.wait({write_task, stop_task}, return_when=asyncio.FIRST_COMPLETED)
            if not write_task.done():
                await self._finish(follow_task, write_task)
            if write_task.done():
                write_task.result()
            if follow_task.done() and not follow_task.cancelled():
                follow_task.result()
        finally:
            await end(follow_task, write_task)

    async def _open(self, stop_task: asyncio.Task[bool]) -> None:
        """Ask the target for its position. Raises ProcessError if this process has to end before the target answers."""
        open_call = partial(self._target.open, self._state.seq, self._state.mark)
        open_task = asyncio.create_task(self._attempt(open_call), name="open")
        try:
            await asyncio.wait({open_task, stop_task}, return_when=asyncio.FIRST_COMPLETED)
            if not open_task.done():
                raise ProcessError(f"{self._target.destination} did not answer before the export was stopped")
            self._state.seq = open_task.result()
        finally:
            await end(open_task)
        self._save()

    async def _finish(self, follow_task: asyncio.Task[None], write_task: asyncio.Task[None]) -> None:
        """Read and write the last rows when this process has to end, as far as the time suffices."""
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_READ_TIMEOUT_S):
                for _ in range(2):  # a read in progress may have missed the last events
                    self._read_done.clear()
                    await self._read_done.wait()
        await end(follow_task)
        await asyncio.wait({write_task}, timeout=LAST_WRITE_TIMEOUT_S)
        if not write_task.done():
            command = f"oven-controller export {self._access.run} --to {self._name}"
            log.warning("%s did not accept the last rows in time; `%s` sends them", self._target.destination, command)

    async def _follow(self) -> None:
        rows = Rows()
        async for event in follow_log(self._access, self._read_done.set):
            self._has_ended = is_ended_after(event, self._has_ended)
            row = rows.convert(event)
            if row is None:
                continue
            if row.seq > self._state.seq:
                await self._queue.put(row)
            elif row.event is not None:
                self._events.append(row)

    async def _write_rows(self, follow_task: asyncio.Task[None]) -> None:
        """Write rows until the log has been read to its end and no row is left."""
        while rows := await self._next_rows(follow_task):
            self._events += [row for row in rows if row.event is not None]
            self._state.mark = await self._attempt(partial(self._write, rows))
            self._state.seq = rows[-1].seq
            self._written_count += len(rows)
            self._save()

    def _write(self, rows: list[Row]) -> str:
        """Write the rows. After a failure, first ask the target which of them it has."""
        if self._has_failed:
            seq = self._target.open(self._state.seq, self._state.mark)
            rows = [row for row in rows if row.seq > seq]
        self._has_failed = True
        mark = self._target.write(rows, self._events) if rows else self._state.mark
        self._has_failed = False
        return mark

    async def _next_rows(self, follow_task: asyncio.Task[None]) -> list[Row]:
        """Collect rows for the target's interval, or until the log ends. Return an empty list if there are no more."""
        rows: list[Row] = []
        deadline = time.monotonic() + self._target.interval_s
        while len(rows) < self._target.max_rows:
            try:
                rows.append(self._queue.get_nowait())
                continue
            except asyncio.QueueEmpty:
                pass
            if follow_task.done() or (rows and (self._stop.is_set() or time.monotonic() > deadline)):
                break
            await asyncio.sleep(0.1)
        return rows

    async def _attempt(self, call: Callable[[], _Result]) -> _Result:
        """Call the target in a thread until it succeeds. Raises ConfigError, and ProcessError as `run_exporter`."""
        delay_s, first_failure = FIRST_RETRY_S, 0.0
        while True:
            try:
                result = await asyncio.to_thread(call)
                if first_failure:
                    log.info("exporting to %s works again", self._target.destination)
                return result
            except ConfigError:
                raise
            except Exception as error:
                text = f"{self._target.destination}: {shorten(reason(error), 200)}"
                if not first_failure:
                    first_failure = time.monotonic()
                    log.warning("exporting failed: %s; retrying until it works", text)
                if time.monotonic() - first_failure > GIVE_UP_S and not self._access.is_up():
                    raise ProcessError(f"{text}; the next `oven-controller export` continues from there") from error
            await asyncio.sleep(delay_s)
            delay_s = min(2 * delay_s, MAX_RETRY_S)

    def _save(self) -> None:
        export_state.save(self._access.folder.path, self._name, self._state)
