"""Keeps a run's log complete: appends the messages that the learner saved, and completes log.jsonl at the end."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from oven_controller.stack.line_output import LinePrinter
from oven_core.bus import NatsError, streams
from oven_core.bus.connection import Bus
from oven_core.errors import BusError, OvenError
from oven_core.protocol.messages import RunEnded
from oven_runs.access import log_recovery
from oven_runs.access.log_watch import LogWatch
from oven_runs.home.learner_spool import Spool, append_missing, read_spool
from oven_runs.home.log_mirror import Mirror
from oven_runs.home.run_folder import RunFolder
from oven_runs.process.child_process import short_path

SERVER_TIMEOUT_S = 12.0
"""Seconds to wait for a server that does not respond. It is restarted within 4 s, or later if the machine is busy."""
SHORT_SERVER_TIMEOUT_S = 0.5
"""Seconds to wait for the server after an earlier wait has failed."""
FLUSH_INTERVAL_S = 1.0
"""Seconds between two flushes of log.jsonl."""
FINISH_TIMEOUT_S = 60.0
"""Timeout in seconds for completing log.jsonl when the stack ends."""


class LogKeeper:
    """Maintains the log of one run while its stack is up."""

    def __init__(self, folder: RunFolder, printer: LinePrinter, out: Callable[[str], None]) -> None:
        self.gap_report = ""
        """Description of the messages that are missing from the final log."""
        self.saved_end: RunEnded | None = None
        """The learner's last message, if it is saved but not yet in the log."""
        self._folder, self._printer, self._out = folder, printer, out
        self._has_late_messages = False  # whether messages that a learner saved were appended to the log
        self._timeout_s = SERVER_TIMEOUT_S

    async def drain(self, bus: Bus, watch: LogWatch) -> None:
        """Wait until the whole log has been read, even while the server is restarting."""
        async with self._server_timeout():
            while True:
                try:
                    return await watch.wait_for(await bus.head(self._folder.run))
                except BusError:
                    await asyncio.sleep(0.1)

    async def append_saved(self, bus: Bus) -> None:
        """Append the messages that a learner saved because it ended without a server. Wait up to SERVER_TIMEOUT_S
        for the server. Raises ConfigError for messages of another run's learner."""
        spool = await asyncio.to_thread(Spool.lock, self._folder.path, self._folder.run, wait_s=SERVER_TIMEOUT_S)
        if spool is None:
            return
        with contextlib.closing(spool):
            async with self._server_timeout():
                while not await self._append_spool(bus, spool):
                    await asyncio.sleep(0.1)

    @contextlib.asynccontextmanager
    async def _server_timeout(self) -> AsyncIterator[None]:
        """Limit the wait for the server to SERVER_TIMEOUT_S. After one timeout, later waits are shorter."""
        try:
            async with asyncio.timeout(self._timeout_s):
                yield
        except TimeoutError:
            self._timeout_s = SHORT_SERVER_TIMEOUT_S

    async def _append_spool(self, bus: Bus, spool: Spool) -> bool:
        """Append the saved messages. Return False if the caller must try again."""
        try:
            if not await streams.exists(bus.jetstream, self._folder.run):
                return True  # the store is gone
            await append_missing(bus, self._folder.run, spool.content.messages)
        except (BusError, NatsError, OSError):
            return False
        log_recovery.report_spool(spool, self._out)
        self._has_late_messages = self._has_late_messages or bool(spool.content.messages)
        try:
            spool.remove()
        except OSError as error:
            self._out(f"cannot remove {short_path(spool.path)} ({error.strerror}); its messages are already in the log")
        return True

    async def flush_regularly(self, mirror: Mirror, embedded: bool) -> None:
        """Flush log.jsonl every second. Report each problem with log.jsonl or with the store once."""
        store = self._folder.server.folder / "store" / "jetstream"
        reported_lines: set[str] = set()

        def report(line: str) -> None:
            if line not in reported_lines:
                reported_lines.add(line)
                self._out(line)

        while True:
            await asyncio.sleep(FLUSH_INTERVAL_S)
            mirror.flush()
            if mirror.fault:
                report(f"cannot write log.jsonl ({mirror.fault}); free some disk space, and it will be completed later")
            if embedded and not store.exists():
                report(
                    f"the store of the log was removed ({short_path(store)}); the log so far is in log.jsonl, and the "
                    "learner saves its later messages in the run's folder; end the run with "
                    f"`oven-controller stop {self._folder.run}`"
                )

    async def finish(self, bus: Bus, watch: LogWatch, mirror: Mirror) -> None:
        """Complete log.jsonl as far as possible."""
        try:
            async with asyncio.timeout(FINISH_TIMEOUT_S):
                await self.append_saved(bus)  # again, because the server may have been down at the first attempt
                await self.drain(bus, watch)
                if not await streams.exists(bus.jetstream, self._folder.run):
                    mirror.close()
                    for event in log_recovery.recover_without_store(self._folder, self._out):
                        self._printer.on_event(event)
                    return
                has_late_messages = self._has_late_messages
                if has_late_messages or mirror.fault:
                    mirror.close()
                    await log_recovery.complete_log(bus, self._folder, self._out, has_late_messages=has_late_messages)
                    return
                await log_recovery.copy_new_events(bus, self._folder.run, mirror)
                mirror.finish()
                log_recovery.report_differences(self._folder, mirror, self._out)
                log_recovery.mark_incomplete(self._folder, incomplete=False)
        except (OvenError, TimeoutError, NatsError, OSError) as error:
            self._out(
                f"could not export the log ({error}); `oven-controller log {self._folder.run}` reads it from the store"
            )

    def update_gap_report(self, expects_end: bool) -> None:
        """Set `gap_report` and `saved_end`. If `expects_end` is set, a log without RunEnded is incomplete."""
        view = self._printer.view
        try:
            self.gap_report = self._folder.missing_messages()
            self.saved_end = read_spool(self._folder.path, self._folder.run).run_end
        except OvenError as error:
            self.gap_report = str(error)
        if not self.gap_report and expects_end and view.started is not None and view.ended is None:
            self.gap_report = "the learner's last message is missing from the log"
        if not self.gap_report and self._printer.gap_finder.missing_count:
            self.gap_report = (
                f"{self._printer.gap_finder.missing_count} messages of the learner are missing from the log; "
                f"`oven-controller replay {self._folder.run} --verify` lists them"
            )
