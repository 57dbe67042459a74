"""Opens a long log: shows a preview immediately, then the whole verified log, while new events arrive."""

from __future__ import annotations

import asyncio
from collections.abc import Callable
from contextlib import aclosing

from oven_core.cancellation import end
from oven_core.protocol.events import Event
from oven_core.security.signing import LEARNER, Keyring, load_keys
from oven_runs.home.run_folder import RunFolder
from oven_tui.model.monitor_view import MonitorView
from oven_tui.recording.log_reader import FullLog, Preview, Progress, ReadFailure, stream_frames

ShowView = Callable[[MonitorView, Keyring], None]
"""Receives a new view to show, and the keyring to verify later events with."""


class LogOpener:
    """A task that reads a run's log.jsonl in a thread. Pass new events that arrive meanwhile to `add`, so that they are
    added to the view of the whole log."""

    def __init__(self, folder: RunFolder, show_view: ShowView, progress: Callable[[float], None]) -> None:
        self.fault = ""
        """The reason why the log could not be read to its end. It is empty if there was no failure so far."""
        self.is_reading = False
        self.folder, self._show_view, self._progress = folder, show_view, progress
        self._task: asyncio.Task[None] | None = None
        self._first_frame = asyncio.Event()
        self._new_events: list[Event] = []
        self._file_version = (0, 0)  # size and modification time at the last start

    async def start(self, *, growing: bool) -> None:
        """Start reading, and wait for the first view. `growing` means that the log is being written."""
        stat = self.folder.export.stat()
        if self.fault and self._file_version == (stat.st_size, stat.st_mtime_ns):
            return  # the damaged file has not changed
        self.fault, self.is_reading = "", True
        self._file_version = (stat.st_size, stat.st_mtime_ns)
        self._first_frame.clear()
        self._task = asyncio.create_task(self._read(growing), name="opening")
        await self._first_frame.wait()

    async def wait(self) -> None:
        """Wait until the whole log is shown or has failed to load. `fault` then contains the reason."""
        if self._task is not None:
            await self._task

    async def close(self) -> None:
        if self._task is not None:
            await end(self._task)

    def add(self, events: list[Event]) -> None:
        """Add new, unverified events that follow those in the view."""
        if self.is_reading:
            self._new_events += events

    async def _read(self, growing: bool) -> None:
        try:
            async with aclosing(stream_frames(self.folder, growing=growing)) as incoming:
                async for frame in incoming:
                    match frame:
                        case Preview(view):
                            self._show_view(view, self._preview_keyring())
                        case Progress(share):
                            self._progress(share)
                        case FullLog(state):
                            for event in self._new_events:
                                if event.seq > state.seq:
                                    state.feed(event)
                            self._show_view(state.view, state.keyring)
                        case ReadFailure(reason):
                            self.fault = reason
                    self._first_frame.set()
        finally:
            self.is_reading = False
            self._new_events.clear()
            self._first_frame.set()

    def _preview_keyring(self) -> Keyring:
        """Return the keyring for new events until the keys in the log have been read."""
        path = self.folder.keys_file()
        keys = load_keys(path) if path else {}
        return Keyring.with_keys(keys) if LEARNER in keys else Keyring()
