"""The feed of one run's log: live, from its export, and live again when the stack comes back.

Live messages only signal new events. The events, with their order and sequence, come from `history`. It is asked at
most every GAP_S, so that a fast run costs the mesh no more than a slow one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Literal

from nats.errors import Error as NatsError

from oven_core.bus.connection import Bus
from oven_core.errors import BusError, ConfigError, OvenError, RefusedError, reason
from oven_core.protocol.events import Event
from oven_core.security.signing import Keyring
from oven_runs.access import log_recovery, log_sources
from oven_runs.access.local_run import LocalRun
from oven_runs.access.run_access import RunAccess, ends
from oven_tui.model.monitor_view import MonitorView
from oven_tui.past.opening import Opening
from oven_tui.past.reader import is_long

GAP_S = 0.2
RETRY_S = 0.5
LOOK_S = 1.0
BATCH = 256

Link = Literal[
    "connecting",
    "reading",
    "checking",
    "checking past",
    "connected",
    "no mesh",
    "reconnecting",
    "refused",
    "down",
    "unreadable",
]
"""`checking`: a preview is shown while a long log is read; `checking past`: the same for a run whose stack is down. `no
mesh`: no replica answers, so the stored log is read if the run's folder is on this machine. `refused`: the server no
longer accepts the key; the feed keeps trying. `down`: the stack is down, so the past is shown."""


class Feed:
    """Passes new verified events to `take`, in order, and each change of the connection to `say` with a detail."""

    def __init__(
        self,
        access: RunAccess,
        take: Callable[[list[Event]], None],
        say: Callable[[Link, str], None],
        show: Callable[[MonitorView], None] | None = None,
    ) -> None:
        """`show`: receives a view that replaces the one that `take` feeds, such as the preview of a long log. Without
        it, every event goes to `take`."""
        self._access = access
        self._take = take
        self._report = say
        self._link: tuple[Link, str] = ("connecting", "")
        self._show = show
        self._opening: Opening | None = None
        if isinstance(access, LocalRun) and show is not None:
            self._opening = Opening(access.folder, self._opened, self._progress)
        self._last = 0
        self._ended = False
        self._away_since = 0.0
        self._keyring: Keyring | None = None

    async def run(self) -> None:
        """Run until cancelled. No fault of bus, stack or disk ends it."""
        try:
            await self._run()
        finally:
            if self._opening is not None:
                await self._opening.close()

    async def _run(self) -> None:
        while True:
            try:
                if self._access.is_up():
                    if not self._last:
                        await self._open(growing=True)
                    await self._live()
                else:
                    await self._past()
            except (OvenError, NatsError, OSError, ValueError) as error:
                up = self._access.is_up()
                if up and self._access.is_over(self._ended):
                    self._say("down", "")
                elif up:
                    self._say("refused" if isinstance(error, RefusedError) else "reconnecting", self._outage(error))
                else:
                    self._say("unreadable", reason(error))
                await asyncio.sleep(RETRY_S if up else LOOK_S)

    def _outage(self, error: Exception) -> str:
        """Return for how long the connection has been away, and why."""
        now = asyncio.get_running_loop().time()
        self._away_since = self._away_since or now
        return f"for {now - self._away_since:.0f} s: {reason(error)}"

    def _give(self, events: list[Event]) -> None:
        fresh = [event for event in events if event.seq > self._last]
        if fresh:
            keyring = self._keyring = self._keyring or self._access.keyring()
            judged = [keyring.verify(event) for event in fresh]
            for event in judged:
                self._ended = ends(event, self._ended)
            self._last = fresh[-1].seq
            if self._opening is not None:
                self._opening.add(fresh)
            self._take(judged)

    def _say(self, link: Link, detail: str) -> None:
        self._link = (link, detail)
        if self._opening is None or not self._opening.under_way or link == "unreadable":
            self._report(link, detail)

    async def _open(self, *, growing: bool) -> bool:
        """Show a long log, if it is growing only a part. Return False for a short one. Raises ConfigError."""
        if self._opening is None or not is_long(self._opening.folder):
            return False
        self._report("reading", "")
        await self._opening.begin(growing=growing)
        if not growing:
            await self._opening.done()
            if self._opening.fault:
                raise ConfigError(self._opening.fault)
        return True

    def _opened(self, view: MonitorView, keyring: Keyring) -> None:
        assert self._show is not None
        self._keyring, self._last = keyring, view.run.seq
        self._ended = view.run.ended is not None
        self._show(view)
        if view.preview:
            self._progress(0.0)
        else:
            self._report(*self._link)

    def _progress(self, share: float) -> None:
        self._report("checking" if self._access.is_up() else "checking past", f"{share:.0%}")

    async def _live(self) -> None:
        """Follow the log until the stack is down. Raises BusError if the server is gone."""
        signal = asyncio.Event()
        async with self._access.connect("monitor") as bus:
            self._say("reading", "")
            await log_sources.listen(bus, self._access.run, signal)
            loop = asyncio.get_running_loop()
            while self._access.is_up():
                signal.clear()
                requested_at = loop.time()
                async for events in self._news(bus):
                    self._give(events)
                    await asyncio.sleep(0)
                if not bus.client.is_connected:
                    raise BusError("the server went away")
                try:
                    async with asyncio.timeout(LOOK_S):
                        await signal.wait()
                except TimeoutError:
                    continue
                await asyncio.sleep(max(0.0, requested_at + GAP_S - loop.time()))

    async def _news(self, bus: Bus) -> AsyncIterator[list[Event]]:
        """Yield the events after the last one, from the mesh or otherwise from the store."""
        if not bus.client.is_connected:
            raise BusError("the server went away")
        try:
            async for events in log_sources.batches(bus, self._access.run, self._last):
                yield events
            self._say("connected", "")
            self._away_since = 0.0
        except BusError as error:
            if not bus.client.is_connected:
                raise
            try:
                events = [event async for event in self._access.stored(self._last)]
            except BusError:  # from elsewhere there is no other way to the log
                if not bus.client.is_connected:
                    raise
                events = []
            self._say("no mesh", str(error))
            yield events
            await asyncio.sleep(LOOK_S)

    async def _past(self) -> None:
        """Show the log of a run whose stack is down, then wait until it is up again."""
        if self._last == 0 and isinstance(self._access, LocalRun):
            await log_recovery.recover(self._access.folder, lambda _line: None)  # the monitor has the terminal
        if self._opening is not None and self._opening.under_way:
            await self._opening.done()  # the stack went down while its log was being checked
        if self._last or not await self._open(growing=False):
            await self._read_rest()
        if not self._last:
            raise ConfigError(f"the log of run {self._access.run!r} is empty")
        self._say("down", "")
        while not self._access.is_up():
            await asyncio.sleep(LOOK_S)

    async def _read_rest(self) -> None:
        part: list[Event] = []
        async for event in self._access.remaining_events(self._last):
            part.append(event)
            if len(part) >= BATCH:
                self._give(part)
                part = []
                await asyncio.sleep(0)
        self._give(part)
