"""The notifier of one run: it reads the log as it grows, and has what is worth it delivered to each recipient.

It asks `history` with the monitor's key, every POLL_S and when it hears of a decision, a receipt or the end. What it
knows of the run it takes from the whole log, each time that it starts; what it has told, from its cursor, so that a
restart tells nothing twice.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Sequence
from dataclasses import replace
from datetime import UTC, datetime
from typing import Final

from nats.aio.msg import Msg

from oven_controller.notify import cursor as cursors
from oven_controller.notify.cursor import Cursor
from oven_controller.notify.delivery import Delivery
from oven_controller.notify.message import Notice
from oven_controller.notify.pacing import Pacer, PacerState
from oven_controller.notify.recipients import Recipient
from oven_controller.notify.triggers import Triggers
from oven_core.bus.connection import Bus
from oven_core.cancellation import end
from oven_core.errors import BusError, RefusedError
from oven_core.protocol.events import UNKNOWN, Event
from oven_core.protocol.messages import RunEnded
from oven_core.protocol.names import Subjects
from oven_runs.access.log_sources import batches
from oven_runs.access.run_access import RunAccess
from oven_runs.home.run_folder import RunFolder
from oven_runs.settings.notifications import SEVERITIES, NotifySettings

log = logging.getLogger("oven.notify")

POLL_S: Final = 0.5
"""Seconds between two looks at the log, where nothing is heard."""
GAP_S: Final = 0.1
"""Seconds between two looks at least: what comes in a burst is asked for together."""
AGAIN_S: Final = 1.0
"""Seconds between two attempts where the log cannot be read."""
SAVE_S: Final = 30.0
"""Seconds after which the cursor is written although nothing was told: a restart reads what is behind it."""
LAST_READ_S: Final = 1.5
LAST_WORDS_S: Final = 2.5
"""Seconds for what is left to be sent when the stack goes down, which waits for 5."""


class Notifier:
    """`folder`: the run's, where the cursor is; None: nothing is written down."""

    def __init__(
        self, access: RunAccess, settings: NotifySettings, recipients: Sequence[Recipient], folder: RunFolder | None
    ) -> None:
        self._access, self._settings, self._folder = access, settings, folder
        self._triggers = Triggers(access.run)
        known = cursors.load(folder.path) if folder is not None else None
        self._cursor = known or Cursor()
        self._caught_up = known is not None
        """Otherwise what is in the log already is the past, and is not told."""
        self._keyring, self._last = access.keyring(), 0
        self._heard = asyncio.Event()
        self._heard_end: Event | None = None
        self._saved_at, self._unwritten = -SAVE_S, False
        states = {recipient.name: self._cursor.recipients.get(recipient.name, PacerState()) for recipient in recipients}
        self._cursor.recipients = states
        self.deliveries = [Delivery(one, Pacer(access.run, states[one.name]), self._write_down) for one in recipients]
        for delivery in self.deliveries:
            for notice in delivery.pacer.in_doubt():
                log.warning(
                    "%s may not have got %r: the notifier ended meanwhile", delivery.recipient.name, notice.title
                )

    async def run(self, stop: asyncio.Event) -> None:
        """Until `stop`, or the run is over, and what is left then is sent. Raises RefusedError, ConfigError."""
        sending = [asyncio.create_task(one.run(), name=f"deliver-{n}") for n, one in enumerate(self.deliveries)]
        reading = asyncio.create_task(self._read(), name="read")
        stopped = asyncio.create_task(stop.wait(), name="stop")
        try:
            await asyncio.wait({reading, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if stopped.done():
                await end(reading)
                with contextlib.suppress(BusError, TimeoutError):
                    async with asyncio.timeout(LAST_READ_S), self._access.connected("monitor") as bus:
                        await self._news(bus)
            else:
                reading.result()
            self._offer(self._went_down())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_WORDS_S):
                    await asyncio.gather(*(delivery.idle() for delivery in self.deliveries))
        finally:
            await end(reading, stopped, *sending)
            self._write_down()
            self._tell_what_is_left()

    def _tell_what_is_left(self) -> None:
        later = "; `up --resume` sends them" if self._folder is not None else ""
        for delivery in self.deliveries:
            name, pacer = delivery.recipient.name, delivery.pacer
            doubtful = pacer.state.sending.count if pacer.state.sending is not None else 0
            if doubtful:
                log.warning("%s had not answered yet: it may lack the last message (notices in it: %d)", name, doubtful)
            if left := pacer.waiting - doubtful:
                log.warning("%s lacks what was not sent (notices: %d)%s", name, left, later)

    async def _read(self) -> None:
        while self._access.up():
            try:
                async with self._access.connected("monitor") as bus:
                    await self._listen(bus)
                    while self._access.up():
                        self._heard.clear()
                        await self._news(bus)
                        self._offer(self._triggers.quiet(datetime.now(UTC)))
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(POLL_S):
                                await self._heard.wait()
                        await asyncio.sleep(GAP_S)
            except RefusedError:
                raise
            except BusError as error:
                self._take_heard_end()
                if self._access.over(self._triggers.view.ended is not None):
                    break
                log.debug("the log is not read: %s", error)
                await asyncio.sleep(AGAIN_S)
        async for event in self._access.past(self._last):
            if event.seq > self._last:
                self._take([event])

    async def _listen(self, bus: Bus) -> None:
        """Hear of what is rare and may be worth a message: it is asked for at once. What is said at every step is not
        listened to."""

        async def hear(message: Msg) -> None:
            said = Event.carried(0, message.subject, message.data, UNKNOWN, message.headers)
            if isinstance(said.body, RunEnded):
                self._heard_end = said
            self._heard.set()

        on = Subjects(self._access.run)
        for subject in (on.run, on.decision("*"), on.receipt):
            await bus.subscribe(subject, hear)
        await bus.flush()

    def _take_heard_end(self) -> None:
        """The run's end, where it was heard and there is no mesh any more to read it from."""
        heard, self._heard_end = self._heard_end, None
        if heard is not None and self._triggers.view.ended is None:
            self._take([replace(heard, seq=self._last + 1, time=datetime.now(UTC))])

    async def _news(self, bus: Bus) -> None:
        """All that the log has behind the last event. Raises BusError."""
        async for events in batches(bus, self._access.run, self._last):
            self._take(events)
        if not self._caught_up:
            self._caught_up, self._cursor.seq = True, self._last
            self._offer(self._triggers.waiting())
        if time.monotonic() - self._saved_at > SAVE_S:
            self._write_down()

    def _take(self, events: Sequence[Event]) -> None:
        found: list[Notice] = []
        for event in events:
            told = self._triggers.feed(self._keyring.verify(event))
            self._last = event.seq
            if self._caught_up and event.seq > self._cursor.seq:
                found += told
        if self._caught_up:
            self._cursor.seq = max(self._cursor.seq, self._last)
        self._offer(found)

    def _offer(self, notices: Sequence[Notice]) -> None:
        least = SEVERITIES.index(self._settings.severity)
        wanted = [one for one in notices if one.kind in self._settings.on and SEVERITIES.index(one.severity) >= least]
        if not wanted or not self._caught_up:
            return
        for delivery in self.deliveries:
            for notice in wanted:
                delivery.offer(notice)
        self._write_down()

    def _went_down(self) -> list[Notice]:
        """What the stack knows of the learner's end, where the learner has not said it."""
        info = self._access.info()
        if info.ended is None and self._access.up():
            return []  # this process alone was told to end, or the run is elsewhere
        return self._triggers.went_down(info.ended, info.learner_end, datetime.now(UTC))

    def _write_down(self) -> None:
        """The cursor. A disk that takes nothing costs a line: then a restart may tell something twice."""
        self._saved_at = time.monotonic()
        if self._folder is None:
            return
        try:
            cursors.save(self._folder.path, self._cursor)
            self._unwritten = False
        except OSError as error:
            if not self._unwritten:
                log.warning("%s cannot be written (%s)", cursors.NAME, error.strerror)
            self._unwritten = True
