"""Access to a run whose folder is on this machine."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncGenerator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING

from oven_core.errors import BusError
from oven_core.protocol.events import Event
from oven_core.protocol.permissions import Role
from oven_core.security.signing import Keyring, load_keys
from oven_runs.access.run_access import RunAccess, warn
from oven_runs.home.run_folder import RunFolder, RunInfo

if TYPE_CHECKING:  # imported in the methods that need it: see run_access
    from oven_core.bus.connection import Bus


class LocalRun(RunAccess):
    """A run that is read through its folder, whether it is up or down. The folder has the stack's own keys."""

    def __init__(self, folder: RunFolder) -> None:
        self.folder = folder
        self.run, self.by = folder.run, "operator"

    @property
    def location(self) -> str:
        return str(self.folder.path)

    @property
    def export_folder(self) -> Path:
        return self.folder.path

    def info(self) -> RunInfo:
        return self.folder.info()

    def up(self) -> bool:
        return self.folder.locked()

    def is_over(self, ended: bool) -> bool:
        return not self.folder.locked()

    def connected(self, role: Role) -> AbstractAsyncContextManager[Bus]:
        from oven_runs.access.log_sources import connected

        return connected(self.folder, role)

    def keyring(self, *, check: bool = True) -> Keyring:
        return Keyring(self.folder.pin(), check=check)

    async def live_keyring(self, bus: Bus) -> Keyring:
        path = self.folder.keys()
        return Keyring.with_keys(load_keys(path) if path else {})

    async def raw_events(
        self, *, exact: bool = False, brief: bool = False, tell: Callable[[str], object] = warn
    ) -> AsyncGenerator[Event]:
        """Read `history` while the stack is up, else log.jsonl or the store. `brief` begins with log.jsonl."""
        from oven_runs.access import log_recovery
        from oven_runs.access.brief_log import BriefLog
        from oven_runs.access.log_sources import batches, exported

        if not self.folder.locked():
            await log_recovery.recover(self.folder, tell)
            for event in BriefLog(self.folder) if brief else exported(self.folder):
                yield event
            return
        last_seq = 0
        if brief and self.folder.export.exists():
            mirror = BriefLog(self.folder, growing=True)
            for event in mirror:
                yield event
            last_seq = mirror.seq
        if not exact:
            with contextlib.suppress(BusError):  # no mesh answers, but the log is still there
                async with (
                    self.connected("monitor") as bus,
                    contextlib.aclosing(batches(bus, self.run, last_seq)) as answers,
                ):
                    async for batch in answers:
                        for event in batch:
                            yield event
                            last_seq = event.seq
                return
        async with contextlib.aclosing(self.stored(last_seq)) as log:
            async for event in log:
                yield event

    async def newest(self, count: int) -> list[Event]:
        from oven_runs.access import log_recovery
        from oven_runs.access.brief_log import newest_events
        from oven_runs.access.log_sources import history

        locked, keyring = self.folder.locked(), self.keyring()
        if not locked:
            await log_recovery.recover(self.folder, warn)
        elif not self.folder.export.exists():
            return await super().newest(count)
        newest, seq = newest_events(self.folder, count, keyring, growing=locked)
        if locked:
            async with self.connected("monitor") as bus:
                newest += map(keyring.verify, await history(bus, self.run, seq))
        return newest[-count:]

    async def past(self, after: int) -> AsyncGenerator[Event]:
        if after and not self.folder.exported():
            return  # the stack was killed, and its store is only opened to read the whole log
        if after:
            from oven_runs.access.log_sources import LogFile, offset_behind

            for event in LogFile(self.folder, offset=offset_behind(self.folder, after), seq=after):
                yield event
            return
        async for event in self.raw_events(tell=lambda _line: None):  # `status` reports damage; a monitor has no room
            yield event

    def stored(self, after: int = 0) -> AsyncGenerator[Event]:
        from oven_runs.access.log_sources import stored

        return stored(self.folder, after)

    def missing(self) -> str:
        return "" if self.folder.locked() else self.folder.missing()
