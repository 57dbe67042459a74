"""Work of a tool on its own thread: the protocol stays alive meanwhile, progress is told, and a call that the client
cancels is given up at the next event."""

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

TOLD_EVERY_S: Final = 0.5
"""Between two reports of progress, in seconds: a client draws each."""

T = TypeVar("T")


class GivenUpError(Exception):
    """The client cancelled the call."""


class Progress:
    """How far a tool has read a log. `hear` and `count` are called on its thread."""

    def __init__(self, context: Context | None) -> None:
        """`context`: of the call; None: no one is told."""
        self._context = context
        self._given_up = threading.Event()
        self._events = 0
        self._told = time.monotonic()

    def give_up(self) -> None:
        self._given_up.set()

    def hear(self, event: Event) -> None:
        """An event was read. Raises GivenUpError."""
        self.count(self._events + 1, 0)

    def count(self, events: int, tick: int) -> None:
        """So many events were read, up to this tick. Raises GivenUpError."""
        self._events = events
        if self._given_up.is_set():
            raise GivenUpError
        now = time.monotonic()
        if self._context is None or now - self._told < TOLD_EVERY_S:
            return
        self._told = now
        at = f", tick {tick}" if tick else ""
        message = f"{events} events read{at}"
        anyio.from_thread.run(self._context.report_progress, float(events), None, message)


async def on_thread(context: Context | None, work: Callable[[Progress], T]) -> T:
    """What the work returns. Raises ToolError, as `sentences` has it."""
    progress = Progress(context)
    try:
        with sentences():
            return await anyio.to_thread.run_sync(work, progress, abandon_on_cancel=True)
    finally:
        progress.give_up()


@contextlib.contextmanager
def sentences() -> Iterator[None]:
    """Errors become the tool's: ToolError with a sentence that has the remedy, and no traceback."""
    try:
        yield
    except OvenError as error:
        raise ToolError("\n".join(map(clean, str(error).splitlines()))) from error
    except OSError as error:
        raise ToolError(clean(reason(error))) from error
