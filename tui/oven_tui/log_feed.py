"""Reads the log of one run continuously: live while the stack is running, and otherwise from its log file.

Live messages only signal that there are new events. The events themselves are requested from the log, in order. There
is at most one request every REQUEST_GAP_S seconds, so that a fast run causes no more load than a slow one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Literal

from oven_core.bus import NatsError
from oven_core.bus.connection import Bus
from oven_core.errors import BusError, ConfigError, OvenError, RefusedError, reason
from oven_core.protocol.events import Event
from oven_core.security.signing import Keyring
from oven_runs.access import log_recovery, log_sources
from oven_runs.access.local_run import LocalRun
from oven_runs.access.run_access import RunAccess, is_ended_after
from oven_tui.model.monitor_view import MonitorView
from oven_tui.recording.log_opener import LogOpener
from oven_tui.recording.log_reader import is_long

REQUEST_GAP_S = 0.4
RETRY_S = 0.5
"""Seconds before another attempt to connect."""
POLL_S = 1.0
"""Maximum seconds between requests, and between checks of the stack."""
BATCH_EVENTS = 256

LinkState = Literal[
    "connecting", "reading", "checking", "checking while down", "connected", "no mesh", "reconnecting", "refused",
    "down", "unreadable",
]  # fmt: skip
"""State of the connection.

`checking` means that a preview is shown while a long log is read, `checking while down` that the stack is down, too.
`no mesh` means that no replica answers, so the stored log is read if it is on this machine. `refused` means that the
server no longer accepts the key; the feed keeps trying. `down` means that the stack is down.
"""


class LogFeed:
    """A loop that passes new verified events to `take`, in order, and the state of the connection to `report`."""

    def __init__(
        self,
        access: RunAccess,
        take: Callable[[list[Event]], None],
        report: Callable[[LinkState, str], None],
        show: Callable[[MonitorView], None] | None = None,
    ) -> None:
        """`show` receives a new view, such as the preview of a long log, to which later events belong. Without `show`,
        every event goes to `take`. The second argument of `report` is a detail, such as an error."""
        self._access = access
        self._take = take
        self._report = report
        self._link: tuple[LinkState, str] = ("connecting", "")
        self._show = show
        self._opener: LogOpener | None = None
        if isinstance(access, LocalRun) and show is not None:
            self._opener = LogOpener(access.folder, self._show_opened, self._report_progress)
        self._last_seq = 0
        self._has_ended = False
        self._disconnected_since = 0.0
        self._keyring: Keyring | None = None

    async def run(self) -> None:
        """Run until cancelled. After a failure of the bus, stack or disk, report it and try again."""
        try:
            await self._run()
        finally:
            if self._opener is not None:
                await self._opener.close()

    async def _run(self) -> None:
        while True:
            try:
                if self._access.is_up():
                    if not self._last_seq:
                        await self._open(growing=True)
                    await self._follow_live()
                else:
                    await self._show_stored_log()
            except (OvenError, NatsError, OSError, ValueError) as error:
                is_up = self._access.is_up()
                if is_up and self._access.is_over(self._has_ended):
                    self._set_link("down", "")
                elif is_up:
                    link: LinkState = "refused" if isinstance(error, RefusedError) else "reconnecting"
                    self._set_link(link, self._describe_outage(error))
                else:
                    self._set_link("unreadable", reason(error))
                await asyncio.sleep(RETRY_S if is_up else POLL_S)

    def _describe_outage(self, error: Exception) -> str:
        """Return how long the connection has been lost, and why."""
        now = asyncio.get_running_loop().time()
        self._disconnected_since = self._disconnected_since or now
        return f"for {now - self._disconnected_since:.0f} s: {reason(error)}"

    def _deliver(self, events: list[Event]) -> None:
        new_events = [event for event in events if event.seq > self._last_seq]
        if new_events:
            if self._keyring is None:
                self._keyring = self._access.keyring()
            verified_events = [self._keyring.verify(event) for event in new_events]
            for event in verified_events:
                self._has_ended = is_ended_after(event, self._has_ended)
            self._last_seq = new_events[-1].seq
            if self._opener is not None:
                self._opener.add(new_events)
            self._take(verified_events)

    def _set_link(self, link: LinkState, detail: str) -> None:
        self._link = (link, detail)
        if self._opener is None or not self._opener.is_reading or link == "unreadable":
            self._report(link, detail)

    async def _open(self, *, growing: bool) -> bool:
        """Show a long log, or only its preview if it is `growing`. Return False for a short log. Raises ConfigError."""
        if self._opener is None or not is_long(self._opener.folder):
            return False
        self._report("reading", "")
        await self._opener.start(growing=growing)
        if not growing:
            await self._opener.wait()
            if self._opener.fault:
                raise ConfigError(self._opener.fault)
        return True

    def _show_opened(self, view: MonitorView, keyring: Keyring) -> None:
        assert self._show is not None
        self._keyring, self._last_seq = keyring, view.run.seq
        self._has_ended = view.run.ended is not None
        self._show(view)
        if view.is_preview:
            self._report_progress(0.0)
        else:
            self._report(*self._link)

    def _report_progress(self, share: float) -> None:
        self._report("checking" if self._access.is_up() else "checking while down", f"{share:.0%}")

    async def _follow_live(self) -> None:
        """Follow the log until the stack is down. Raises BusError if the connection is lost."""
        signal = asyncio.Event()
        async with self._access.connect("monitor") as bus:
            self._set_link("reading", "")
            await log_sources.listen(bus, self._access.run, signal)
            loop = asyncio.get_running_loop()
            while self._access.is_up():
                signal.clear()
                requested_at = loop.time()
                async for events in self._new_events(bus):
                    self._deliver(events)
                    await asyncio.sleep(0)
                if not bus.client.is_connected:
                    raise BusError("the connection to the server was lost")
                try:
                    async with asyncio.timeout(POLL_S):
                        await signal.wait()
                except TimeoutError:
                    continue
                await asyncio.sleep(max(0.0, requested_at + REQUEST_GAP_S - loop.time()))

    async def _new_events(self, bus: Bus) -> AsyncIterator[list[Event]]:
        """Yield the events after the last known one, from the mesh or otherwise from the store."""
        if not bus.client.is_connected:
            raise BusError("the connection to the server was lost")
        try:
            async for events in log_sources.read_batches(bus, self._access.run, self._last_seq):
                yield events
            self._set_link("connected", "")
            self._disconnected_since = 0.0
        except BusError as error:
            if not bus.client.is_connected:
                raise
            try:
                events = [event async for event in self._access.stored(self._last_seq)]
            except BusError:  # the store is on another machine
                if not bus.client.is_connected:
                    raise
                events = []
            self._set_link("no mesh", str(error))
            yield events
            await asyncio.sleep(POLL_S)

    async def _show_stored_log(self) -> None:
        """Show the log of a run whose stack is down, then wait until it is up again."""
        if self._last_seq == 0 and isinstance(self._access, LocalRun):
            # No output, because the monitor uses the terminal.
            await log_recovery.recover(self._access.folder, lambda _line: None)
        if self._opener is not None and self._opener.is_reading:
            await self._opener.wait()  # the stack went down while its log was being checked
        if self._last_seq or not await self._open(growing=False):
            await self._read_rest()
        if not self._last_seq:
            raise ConfigError(f"the log of run {self._access.run!r} is empty")
        self._set_link("down", "")
        while not self._access.is_up():
            await asyncio.sleep(POLL_S)

    async def _read_rest(self) -> None:
        batch: list[Event] = []
        async for event in self._access.remaining_events(self._last_seq):
            batch.append(event)
            if len(batch) >= BATCH_EVENTS:
                self._deliver(batch)
                batch = []
                await asyncio.sleep(0)
        self._deliver(batch)
