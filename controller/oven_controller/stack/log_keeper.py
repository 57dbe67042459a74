"""The log during a run: what its learner kept goes in, and log.jsonl is whole at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from nats.errors import Error as NatsError

from oven_controller.stack.line_output import Headless
from oven_core.bus import streams
from oven_core.bus.connection import Bus
from oven_core.errors import BusError, OvenError
from oven_core.protocol.messages import RunEnded
from oven_runs.access import log_recovery
from oven_runs.access.log_watch import Watch
from oven_runs.home.log_mirror import Mirror
from oven_runs.home.run_folder import RunFolder
from oven_runs.home.spool import Spool, append, look
from oven_runs.process.child import short

DRAIN_S = 12.0
"""A server is tried again at most 4 s after its last death; on a busy machine it takes seconds more to start, to be
found, or to fail again first."""
AWAY_S = 0.5
LOOK_S = 1.0
"""Between two looks at the run's folder: log.jsonl is no further behind, unless somebody kills this process."""


class LogKeeper:
    """The log of one run, from the start of its stack to what is missing of it in the end."""

    def __init__(self, folder: RunFolder, report: Headless, out: Callable[[str], None]) -> None:
        self.missing = ""
        """What the log lacks in the end."""
        self.kept_end: RunEnded | None = None
        """The learner's last word, which waits to be appended."""
        self._folder, self._report, self._out = folder, report, out
        self._restored = False  # messages that the learner kept went into the log after its end
        self._patience_s = DRAIN_S

    async def drain(self, bus: Bus, watch: Watch) -> None:
        """Until all that is in the log was read. A server that is being started again just now is waited for."""
        async with self._patiently():
            while True:
                try:
                    return await watch.reached(await bus.head(self._folder.run))
                except BusError:
                    await asyncio.sleep(0.1)

    async def append_kept(self, bus: Bus) -> None:
        """Log what a learner kept when it ended without its server, which may be back within DRAIN_S. Raises
        ConfigError for what another run's learner kept."""
        spool = await asyncio.to_thread(Spool.take, self._folder.path, self._folder.run, wait_s=DRAIN_S)
        if spool is None:
            return
        with contextlib.closing(spool):
            async with self._patiently():
                while not await self._logged(bus, spool):
                    await asyncio.sleep(0.1)

    @contextlib.asynccontextmanager
    async def _patiently(self) -> AsyncIterator[None]:
        """For what needs the server, which may come back: DRAIN_S at most, and once that has passed AWAY_S."""
        try:
            async with asyncio.timeout(self._patience_s):
                yield
        except TimeoutError:
            self._patience_s = AWAY_S

    async def _logged(self, bus: Bus, spool: Spool) -> bool:
        """Whether there is no more to be done about it."""
        try:
            if not await streams.exists(bus.jetstream, self._folder.run):
                return True  # the store is gone
            await append(bus, self._folder.run, spool.content.messages)
        except (BusError, NatsError, OSError):
            return False
        log_recovery.report_spool(spool, self._out)
        self._restored = self._restored or bool(spool.content.messages)
        try:
            spool.done()
        except OSError as error:
            self._out(f"{short(spool.path)} cannot be removed ({error.strerror}); what it holds is in the log")
        return True

    async def keep(self, mirror: Mirror, embedded: bool) -> None:
        """Have log.jsonl on the disk, and say what happens to it or to the store, once each."""
        store, told = self._folder.server.folder / "store" / "jetstream", set[str]()

        def tell(line: str) -> None:
            if line not in told:
                told.add(line)
                self._out(line)

        while True:
            await asyncio.sleep(LOOK_S)
            mirror.flush()
            if mirror.fault:
                tell(f"log.jsonl cannot be written ({mirror.fault}): make room; it is finished from the store later")
            if embedded and not store.exists():
                tell(
                    f"the store of the log is gone ({short(store)} was removed): what was logged so far is in "
                    "log.jsonl, and what the learner says from now on is kept for it; end the run with "
                    f"`oven-controller stop {self._folder.run}`"
                )

    async def finish(self, bus: Bus, watch: Watch, mirror: Mirror) -> None:
        """log.jsonl holds the whole log, as far as one can come by it."""
        try:
            async with asyncio.timeout(60):
                await self.append_kept(bus)  # a server that took longer to come back
                await self.drain(bus, watch)
                if not await streams.exists(bus.jetstream, self._folder.run):
                    mirror.close()
                    for event in log_recovery.recover_without_store(self._folder, self._out):
                        self._report.event(event)
                    return
                if self._restored or mirror.fault:
                    mirror.close()
                    await log_recovery.finish(bus, self._folder, self._out, late=self._restored)
                    return
                await log_recovery.fill(bus, self._folder.run, mirror)
                mirror.finish()
                log_recovery.report_differences(self._folder, mirror, self._out)
                log_recovery.mark_mirrored(self._folder, mirrored=False)
        except (OvenError, TimeoutError, NatsError, OSError) as error:
            self._out(
                f"the log could not be exported ({error}); `oven-controller log {self._folder.run}` reads the store"
            )

    def look_what_is_missing(self, ended: bool) -> None:
        """What the log lacks, for the exit code and the summary. `ended`: it should have the learner's end."""
        view = self._report.view
        try:
            self.missing = self._folder.missing()
            self.kept_end = look(self._folder.path, self._folder.run).end
        except OvenError as error:
            self.missing = str(error)
        if not self.missing and ended and view.started is not None and view.ended is None:
            self.missing = "the log lacks the learner's end"
        if not self.missing and self._report.numbering.missing:
            self.missing = (
                f"the log lacks {self._report.numbering.missing} messages of the learner; "
                f"`oven-controller replay {self._folder.run} --verify` says which"
            )
