"""Access to a run whose folder is on this machine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from oven_core.errors import BusError
from oven_core.protocol.events import Event
from oven_core.security.signing import Keyring, load_keys
from oven_core.terminal_text import warn
from oven_runs.access.run_access import LogView, RunAccess
from oven_runs.home.run_folder import RunFolder
from oven_runs.home.run_info import RunInfo

if TYPE_CHECKING:  # imported in the methods that need it: see run_access
    from oven_core.bus.connection import Bus
    from oven_core.protocol.permissions import Role


class LocalRun(RunAccess):
    """A run that is accessed through its folder, whether it is up or down. The folder contains the stack's keys."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.run, self.user = folder.run, "operator"

    @property
    def location(self) -> str:
        return str(self.folder.path)

    @property
    def export_folder(self) -> Path:
        return self.folder.path

    def info(self) -> RunInfo:
        return self.folder.info()

    def is_up(self) -> bool:
        return self.folder.is_locked()

    def is_over(self, has_ended: bool) -> bool:
        return not self.folder.is_locked()

    def connect(self, role: Role) -> AbstractAsyncContextManager[Bus]:
        from oven_runs.access.log_sources import connect

        return connect(self.folder, role)

    def keyring(self, *, check: bool = True) -> Keyring:
        return Keyring(self.folder.pin(), check=check)

    async def live_keyring(self, bus: Bus) -> Keyring:
        path = self.folder.keys_file()
        return Keyring.with_keys(load_keys(path) if path else {})

    async def raw_events(
        self, *, exact: bool = False, brief: bool = False, report: Callable[[str], object] = warn
    ) -> AsyncGenerator[Event]:
        """Yield events from `history` while the stack is up, and otherwise from log.jsonl or the store. A brief log
        begins with log.jsonl in both cases."""
        from oven_runs.access.brief_log import BriefLog
        from oven_runs.access.log_sources import exported_events

        if not self.folder.is_locked():
            await self._recover(report)
            for event in BriefLog(self.folder) if brief else exported_events(self.folder):
                yield event
            return
        last_seq = 0
        if brief and self.folder.export.exists():
            brief_log = BriefLog(self.folder, growing=True)
            for event in brief_log:
                yield event
            last_seq = brief_log.seq
        async with contextlib.aclosing(self._live_events(last_seq, exact)) as events:
            async for event in events:
                yield event

    async def _recover(self, report: Callable[[str], object]) -> None:
        """Complete the log.jsonl of a run that is down."""
        if not self.folder.has_complete_log():
            from oven_runs.access import log_recovery

            await log_recovery.recover(self.folder, report)

    async def _live_events(self, last_seq: int, exact: bool) -> AsyncGenerator[Event]:
        """Yield the events of a running stack after a sequence number, unverified: from `history`, or from the store if
        `exact` or if no mesh answers."""
        from oven_runs.access.log_sources import read_batches

        if not exact:
            with contextlib.suppress(BusError):
                async with (
                    self.connect("monitor") as bus,
                    contextlib.aclosing(read_batches(bus, self.run, last_seq)) as replies,
                ):
                    async for batch in replies:
                        for event in batch:
                            yield event
                            last_seq = event.seq
                return
        async with contextlib.aclosing(self.stored(last_seq)) as log:
            async for event in log:
                yield event

    async def read_view(
        self,
        view: LogView,
        *,
        report: Callable[[str], object] = warn,
        on_event: Callable[[Event], object] = lambda _: None,
    ) -> None:
        """Feed the log so far to a new view. It starts with the cache of a long log (log_cache)."""
        from oven_runs.access.log_cache import read_with_cache

        is_locked, keyring, last_seq = self.folder.is_locked(), self.keyring(), 0
        if not is_locked:
            await self._recover(report)
        if not is_locked or self.folder.export.exists():
            keyring, last_seq = read_with_cache(self.folder, view, growing=is_locked, on_event=on_event)
        if is_locked:
            async with contextlib.aclosing(self._live_events(last_seq, exact=False)) as events:
                async for raw in events:
                    event = keyring.verify(raw)
                    view.feed(event)
                    on_event(event)

    async def newest(self, count: int) -> list[Event]:
        from oven_runs.access.brief_log import newest_events

        is_locked, keyring = self.folder.is_locked(), self.keyring()
        newest: list[Event] = []
        if not is_locked:
            await self._recover(warn)
        if self.folder.export.exists():
            newest = newest_events(self.folder, count, keyring, growing=is_locked)
        if is_locked:
            async for event in self._live_events(newest[-1].seq if newest else 0, exact=False):
                newest.append(keyring.verify(event))
        return newest[-count:]

    async def remaining_events(self, after: int) -> AsyncGenerator[Event]:
        if after:
            from oven_runs.access.log_sources import LogFile, offset_after

            if not self.folder.has_complete_log():
                return  # the other events are only in the store, which is opened only to read the whole log
            for event in LogFile(self.folder, offset=offset_after(self.folder, after), seq=after):
                yield event
            return
        # A monitor has no space for reports about damage. `status` shows them.
        async for event in self.raw_events(report=lambda _line: None):
            yield event

    def stored(self, after: int = 0) -> AsyncGenerator[Event]:
        from oven_runs.access.log_sources import stored_events

        return stored_events(self.folder, after)

    def missing_messages(self) -> str:
        return "" if self.folder.is_locked() else self.folder.missing_messages()
