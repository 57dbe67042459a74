"""Run a tool's work on a thread, so that the server can report progress. A cancelled call stops at the next event."""

from __future__ import annotations

import contextlib
import threading
import time
from collections.abc import Callable, Iterator
from typing import Final, TypeVar

import anyio.from_thread
import anyio.to_thread
from mcp.server.mcpserver import Context
from mcp.server.mcpserver.exceptions import ToolError

from oven_core.errors import OvenError, reason
from oven_core.protocol.events import Event
from oven_core.terminal_text import clean

REPORT_INTERVAL_S: Final = 0.5
"""Minimum seconds between progress reports, because clients redraw the screen for each one."""

T = TypeVar("T")


class CancelledCallError(Exception):
    """The client cancelled the call. Raised in the tool's thread."""


class Progress:
    """A tool's progress in reading a log, updated by the tool's thread."""

    def __init__(self, context: Context) -> None:
        self._context = context
        self._cancelled = threading.Event()
        self._events = 0
        self._last_report_s = time.monotonic()

    def cancel(self) -> None:
        self._cancelled.set()

    def on_event(self, event: Event) -> None:
        """Count one event and report the progress. Raises CancelledCallError."""
        self.report(self._events + 1, 0)

    def report(self, events: int, tick: int) -> None:
        """Report the number of events read so far, and the tick unless it is 0. Raises CancelledCallError."""
        self._events = events
        if self._cancelled.is_set():
            raise CancelledCallError
        now = time.monotonic()
        if now - self._last_report_s < REPORT_INTERVAL_S:
            return
        self._last_report_s = now
        message = f"{events} events read" + (f", tick {tick}" if tick else "")
        anyio.from_thread.run(self._context.report_progress, float(events), None, message)


async def run_on_thread(context: Context, work: Callable[[Progress], T]) -> T:
    """Run the work on a thread and return its result. Errors become ToolErrors as in `as_tool_errors`."""
    progress = Progress(context)
    try:
        with as_tool_errors():
            return await anyio.to_thread.run_sync(work, progress, abandon_on_cancel=True)
    finally:
        progress.cancel()


@contextlib.contextmanager
def as_tool_errors() -> Iterator[None]:
    """Convert errors to a ToolError, whose message includes the remedy and no traceback."""
    try:
        yield
    except OvenError as error:
        raise ToolError("\n".join(map(clean, str(error).splitlines()))) from error
    except OSError as error:
        raise ToolError(clean(reason(error))) from error
