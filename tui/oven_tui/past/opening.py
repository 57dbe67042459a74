"""The opening of a long log: a preview at once, and behind it all of the log, checked, while new events come."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from oven_core.cancellation import end
from oven_core.protocol.events import Event
from oven_core.security.signing import LEARNER, Keyring, load_keys
from oven_runs.home.run_folder import RunFolder
from oven_tui.model.monitor_view import MonitorView
from oven_tui.past.frames import Failed, Preview, Progress, Whole
from oven_tui.past.reader import frames

Opened = Callable[[MonitorView, Keyring], None]
"""Takes a view to show from now on, and what verifies the events that come after it."""


class Opening:
    """Reads a run's log.jsonl in its own process. New events that come meanwhile go into the preview, and
    then into what replaces it."""

    def __init__(self, folder: RunFolder, opened: Opened, progress: Callable[[float], None]) -> None:
        self.fault = ""
        """Why the log could not be read to its end; empty while that is not known."""
        self.under_way = False
        self._folder, self._opened, self._progress = folder, opened, progress
        self._task: asyncio.Task[None] | None = None
        self._first = asyncio.Event()
        self._behind: list[Event] = []
        self._failed_at = (0, 0)

    async def begin(self, *, growing: bool) -> None:
        """Until there is something to show. `growing`: the log is being written."""
        about = self._folder.export.stat()
        if self.fault and self._failed_at == (about.st_size, about.st_mtime_ns):
            return  # it was not repaired
        self.fault, self.under_way = "", True
        self._failed_at = (about.st_size, about.st_mtime_ns)
        self._first.clear()
        self._task = asyncio.create_task(self._read(growing), name="opening")
        await self._first.wait()

    async def done(self) -> None:
        """Until all of the log is shown, or `fault` says why not."""
        if self._task is not None:
            await self._task

    async def close(self) -> None:
        if self._task is not None:
            await end(self._task)

    def hear(self, events: list[Event]) -> None:
        """Events that came after what is shown, unjudged."""
        if self.under_way:
            self._behind += events

    async def _read(self, growing: bool) -> None:
        try:
            async with aclosing(frames(self._folder, growing=growing)) as coming:
                async for frame in coming:
                    match frame:
                        case Preview(view):
                            self._opened(view, self._keys())
                        case Progress(share):
                            self._progress(share)
                        case Whole(fold):
                            for event in self._behind:
                                if event.seq > fold.seq:
                                    fold.view.feed(fold.keyring.verify(event))
                            self._opened(fold.view, fold.keyring)
                        case Failed(why):
                            self.fault = why
                    self._first.set()
        finally:
            self.under_way = False
            self._behind.clear()
            self._first.set()

    def _keys(self) -> Keyring:
        """What verifies new events before the log's own word on the keys was read."""
        path = self._folder.keys()
        keys = load_keys(path) if path else {}
        return Keyring.knowing(keys) if LEARNER in keys else Keyring()
