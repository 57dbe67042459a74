"""The notifier of one run: it follows the log and passes noteworthy events to each recipient's delivery.

It asks `history` with the monitor's key every POLL_S, and as soon as it hears of a decision, a receipt or the end. Each
time it starts, it folds the whole log to learn the run's state. The cursor says which events were handled before.
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

from oven_controller.notify import cursor as cursor_file
from oven_controller.notify.cursor import Cursor
from oven_controller.notify.delivery import Delivery
from oven_controller.notify.message import Notice
from oven_controller.notify.outbox import Outbox
from oven_controller.notify.recipients import Recipient
from oven_controller.notify.triggers import Triggers
from oven_core.bus.connection import Bus
from oven_core.cancellation import call_at_end, end
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
"""Seconds between two requests for new events."""
GAP_S: Final = 0.1
"""Minimum seconds between two requests, so that a burst of events is fetched together."""
RETRY_S: Final = 1.0
"""Seconds before the next attempt when the log cannot be read."""
SAVE_S: Final = 30.0
"""Seconds after which the cursor is written even if there was no notice. A restart reads what comes after it."""
LAST_READ_S: Final = 1.5
LAST_SEND_S: Final = 2.5
"""Seconds for the last messages when the stack stops, which waits 5 s for this process."""


async def run_notifier(
    access: RunAccess, settings: NotifySettings, recipients: Sequence[Recipient], folder: RunFolder | None = None
) -> None:
    """Notify until the run is over or the process receives a signal. Raises RefusedError, ConfigError."""
    stop = asyncio.Event()
    call_at_end(stop.set)
    await Notifier(access, settings, recipients, folder).run(stop)


class Notifier:
    """Follows one run. The cursor is in `folder`; without a folder nothing is saved."""

    def __init__(
        self, access: RunAccess, settings: NotifySettings, recipients: Sequence[Recipient], folder: RunFolder | None
    ) -> None:
        self._access, self._settings, self._folder = access, settings, folder
        self._triggers = Triggers(access.run)
        saved = cursor_file.load(folder.path) if folder is not None else None
        self._cursor = saved or Cursor()
        self._caught_up = saved is not None
        """False until the log was read once without a cursor: its events are the past, so they cause no notices."""
        self._keyring, self._last_seq = access.keyring(), 0
        self._wake = asyncio.Event()
        self._live_end: Event | None = None
        self._saved_at, self._save_failed = -SAVE_S, False
        outboxes = {recipient.name: self._cursor.recipients.get(recipient.name, Outbox()) for recipient in recipients}
        self._cursor.recipients = outboxes
        self._deliveries = [Delivery(access.run, r, outboxes[r.name], self._save) for r in recipients]

    async def run(self, stop: asyncio.Event) -> None:
        """Follow the log until `stop` is set or the run is over, then send the last messages."""
        sending = [asyncio.create_task(delivery.run(), name="delivery") for delivery in self._deliveries]
        reading = asyncio.create_task(self._follow(), name="follow")
        stopped = asyncio.create_task(stop.wait(), name="stop")
        try:
            await asyncio.wait({reading, stopped}, return_when=asyncio.FIRST_COMPLETED)
            if stopped.done():
                await end(reading)
                with contextlib.suppress(BusError, TimeoutError):
                    async with asyncio.timeout(LAST_READ_S), self._access.connected("monitor") as bus:
                        await self._read_new(bus)
            else:
                reading.result()
            self._queue(self._stack_end())
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(LAST_SEND_S):
                    await asyncio.gather(*(delivery.idle() for delivery in self._deliveries))
        finally:
            await end(reading, stopped, *sending)
            self._save()
            later = "; `up --resume` sends them" if self._folder is not None else ""
            for delivery in self._deliveries:
                if count := delivery.outbox.count():
                    log.warning("%s did not get %d notices%s", delivery.recipient.name, count, later)

    async def _follow(self) -> None:
        while self._access.up():
            try:
                async with self._access.connected("monitor") as bus:
                    await self._subscribe(bus)
                    while self._access.up():
                        self._wake.clear()
                        await self._read_new(bus)
                        self._queue(self._triggers.quiet(datetime.now(UTC)))
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(POLL_S):
                                await self._wake.wait()
                        await asyncio.sleep(GAP_S)
            except RefusedError:
                raise
            except BusError as error:
                self._handle_live_end()
                if self._access.is_over(self._triggers.view.ended is not None):
                    break
                log.debug("the log cannot be read: %s", error)
                await asyncio.sleep(RETRY_S)
        async for event in self._access.past(self._last_seq):
            if event.seq > self._last_seq:
                self._handle([event])

    async def _subscribe(self, bus: Bus) -> None:
        """Listen for rare events, so that they are read at once. Events of every step can wait for the next poll."""

        async def hear(message: Msg) -> None:
            event = Event.from_message(0, message.subject, message.data, UNKNOWN, message.headers)
            if isinstance(event.body, RunEnded):
                self._live_end = event
            self._wake.set()

        subjects = Subjects(self._access.run)
        for subject in (subjects.run, subjects.decision("*"), subjects.receipt):
            await bus.subscribe(subject, hear)
        await bus.flush()

    def _handle_live_end(self) -> None:
        """Use the run's end as it was heard if the mesh is gone and it cannot be read from the log."""
        event, self._live_end = self._live_end, None
        if event is not None and self._triggers.view.ended is None:
            self._handle([replace(event, seq=self._last_seq + 1, time=datetime.now(UTC))])

    async def _read_new(self, bus: Bus) -> None:
        """Handle all events after the last one. Raises BusError."""
        async for events in batches(bus, self._access.run, self._last_seq):
            self._handle(events)
        if not self._caught_up:
            self._caught_up, self._cursor.seq = True, self._last_seq
            self._queue(self._triggers.waiting())
        if time.monotonic() - self._saved_at > SAVE_S:
            self._save()

    def _handle(self, events: Sequence[Event]) -> None:
        notices: list[Notice] = []
        for event in events:
            new = self._triggers.feed(self._keyring.verify(event))
            self._last_seq = event.seq
            if event.seq > self._cursor.seq:
                notices += new
        if self._caught_up:
            self._cursor.seq = max(self._cursor.seq, self._last_seq)
            self._queue(notices)

    def _queue(self, notices: Sequence[Notice]) -> None:
        least = SEVERITIES.index(self._settings.severity)
        selected = [n for n in notices if n.kind in self._settings.on and SEVERITIES.index(n.severity) >= least]
        if not selected or not self._caught_up:
            return
        for delivery in self._deliveries:
            for notice in selected:
                delivery.add(notice)
        self._save()

    def _stack_end(self) -> list[Notice]:
        """The end as the stack knows it, if the learner did not log one."""
        info = self._access.info()
        if info.ended is None and self._access.up():
            return []  # only this process was stopped, or the run is on another machine
        return self._triggers.went_down(info.ended, info.learner_end)

    def _save(self) -> None:
        """Write the cursor. If the disk is full, a restart may send messages twice."""
        self._saved_at = time.monotonic()
        if self._folder is None:
            return
        try:
            cursor_file.save(self._folder.path, self._cursor)
            self._save_failed = False
        except OSError as error:
            if not self._save_failed:
                log.warning("%s cannot be written (%s)", cursor_file.NAME, error.strerror)
            self._save_failed = True
