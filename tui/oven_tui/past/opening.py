"""Opens a long log: shows a preview at once, then the whole verified log, while new events arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from oven_core.cancellation import end
from oven_core.protocol.events import Event
from oven_core.security.signing import LEARNER, Keyring, load_keys
from oven_runs.home.run_folder import RunFolder
from oven_tui.model.monitor_view import MonitorView
from oven_tui.past.reader import Failed, Preview, Progress, Whole, frames

Opened = Callable[[MonitorView, Keyring], None]
"""Receives a view to show from now on, and the keyring that verifies later events."""


class Opening:
    """Reads a run's log.jsonl in a thread. New events that arrive meanwhile are added to the preview, and then to the
    view that replaces it."""

    def __init__(self, folder: RunFolder, opened: Opened, progress: Callable[[float], None]) -> None:
        self.fault = ""
        """Why the log could not be read to its end; empty if it could, or if that is not known yet."""
        self.under_way = False
        self.folder, self._opened, self._progress = folder, opened, progress
        self._task: asyncio.Task[None] | None = None
        self._first = asyncio.Event()
        self._new_events: list[Event] = []
        self._failed_file = (0, 0)  # size and modification time

    async def begin(self, *, growing: bool) -> None:
        """Start reading, and wait until there is something to show. `growing`: the log is being written."""
        stat = self.folder.export.stat()
        if self.fault and self._failed_file == (stat.st_size, stat.st_mtime_ns):
            return  # the damaged file was not replaced
        self.fault, self.under_way = "", True
        self._failed_file = (stat.st_size, stat.st_mtime_ns)
        self._first.clear()
        self._task = asyncio.create_task(self._read(growing), name="opening")
        await self._first.wait()

    async def done(self) -> None:
        """Wait until the whole log is shown, or `fault` says why not."""
        if self._task is not None:
            await self._task

    async def close(self) -> None:
        if self._task is not None:
            await end(self._task)

    def add(self, events: list[Event]) -> None:
        """Add new events, not yet verified, that follow those in the view."""
        if self.under_way:
            self._new_events += events

    async def _read(self, growing: bool) -> None:
        try:
            async with aclosing(frames(self.folder, growing=growing)) as incoming:
                async for frame in incoming:
                    match frame:
                        case Preview(view):
                            self._opened(view, self._keys())
                        case Progress(share):
                            self._progress(share)
                        case Whole(fold):
                            for event in self._new_events:
                                if event.seq > fold.seq:
                                    fold.feed(event)
                            self._opened(fold.view, fold.keyring)
                        case Failed(reason):
                            self.fault = reason
                    self._first.set()
        finally:
            self.under_way = False
            self._new_events.clear()
            self._first.set()

    def _keys(self) -> Keyring:
        """The keyring for new events until the keys in the log itself were read."""
        path = self.folder.keys()
        keys = load_keys(path) if path else {}
        return Keyring.with_keys(keys) if LEARNER in keys else Keyring()
