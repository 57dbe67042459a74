"""Follow the log of one run and send its noteworthy events to each recipient.

The notifier reads the log with the monitor's key. At each start it replays the whole log to rebuild the run's state.
Its own state, in cursor.json, marks the newest event that it has handled.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import time
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from typing import Final

from oven_controller.notify import notifier_state
from oven_controller.notify.message import Message, Notice
from oven_controller.notify.notifier_state import NotifierState
from oven_controller.notify.outbox import Outbox
from oven_controller.notify.recipients import Recipient
from oven_controller.notify.triggers import Triggers
from oven_core.cancellation import end, on_termination
from oven_core.terminal_text import counted
from oven_runs.access.run_access import RunAccess
from oven_runs.home.run_folder import RunFolder
from oven_runs.settings.notifications import SEVERITIES, NotifySettings

log = logging.getLogger("oven.notify")

CHECK_S: Final = 0.1
"""Seconds between checks of an outbox."""
SAVE_S: Final = 30.0
"""Maximum seconds between writes of the state, even without notices. A restart handles all later events again."""
LAST_READ_TIMEOUT_S: Final = 1.5
"""Timeout in seconds for the last read of the log when the stack stops."""
LAST_SEND_TIMEOUT_S: Final = 2.5
"""Timeout in seconds for the last messages when the stack stops. The stack waits 5 s for this process to exit."""


async def run_notifier(
    access: RunAccess, settings: NotifySettings, recipients: Sequence[Recipient], folder: RunFolder | None = None
) -> None:
    """Send notifications until the run is over, or until a signal. Raises RefusedError and ConfigError."""
    stop = asyncio.Event()
    on_termination(stop.set)
    await _Notifier(access, settings, recipients, folder).run(stop)


class _Notifier:
    """Follows one run. Saves the notifier's state in `folder`, or nowhere without a folder."""

    def __init__(
        self, access: RunAccess, settings: NotifySettings, recipients: Sequence[Recipient], folder: RunFolder | None
    ) -> None:
        self._access, self._settings, self._folder = access, settings, folder
        self._triggers = Triggers(access.run)
        saved = notifier_state.load(folder.path) if folder is not None else None
        self._state = saved or NotifierState()
        self._caught_up = saved is not None
        """Whether events cause notices. Without a saved state, the events of the first read are old and cause none."""
        self._read_done = asyncio.Event()
        self._saved_at = -SAVE_S
        self._save_failed = False
        outboxes = {recipient.name: self._state.recipients.get(recipient.name, Outbox()) for recipient in recipients}
        self._state.recipients = outboxes
        self._deliveries = [Delivery(access.run, target, outboxes[target.name], self._save) for target in recipients]

    async def run(self, stop: asyncio.Event) -> None:
        """Follow the log until `stop` is set or the run is over, then send the last messages."""
        delivery_tasks = [asyncio.create_task(delivery.run(), name="delivery") for delivery in self._deliveries]
        follow_task = asyncio.create_task(self._follow(), name="follow")
        stop_task = asyncio.create_task(stop.wait(), name="stop")
        try:
            await asyncio.wait({follow_task, stop_task}, return_when=asyncio.FIRST_COMPLETED)
            if stop_task.done():
                await self._read_last_events()
            else:
                follow_task.result()
            self._queue(self._stack_end_notices())
            await self._wait_until_sent()
        finally:
            await end(follow_task, stop_task, *delivery_tasks)
            self._save()
            hint = "; `up --resume` sends them" if self._folder is not None else ""
            for delivery in self._deliveries:
                if count := delivery.outbox.count():
                    log.warning("%s for %s not sent%s", counted(count, "notice"), delivery.recipient.name, hint)

    async def _read_last_events(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_READ_TIMEOUT_S):
                for _ in range(2):  # a read in progress may have missed the last events
                    self._read_done.clear()
                    await self._read_done.wait()

    async def _wait_until_sent(self) -> None:
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(LAST_SEND_TIMEOUT_S):
                while any(delivery.outbox.next_batch(time.time()) for delivery in self._deliveries):
                    await asyncio.sleep(CHECK_S)

    async def _follow(self) -> None:
        async for event in self._access.follow(log.info, on_poll=self._on_log_end):
            notices = self._triggers.feed(event)
            if self._caught_up and event.seq > self._state.seq:
                self._state.seq = event.seq
                self._queue(notices)

    def _on_log_end(self) -> None:
        """Handle the end of a read: queue notices about advice and silence, and save the state from time to time."""
        if not self._caught_up:
            self._caught_up = True
            self._state.seq = self._triggers.view.seq
            self._queue(self._triggers.pending_advice_notices())
        self._queue(self._triggers.silence_notices(datetime.now(UTC)))
        if time.monotonic() - self._saved_at > SAVE_S:
            self._save()
        self._read_done.set()

    def _queue(self, notices: Sequence[Notice]) -> None:
        min_severity = SEVERITIES.index(self._settings.severity)
        selected = [n for n in notices if n.kind in self._settings.on and SEVERITIES.index(n.severity) >= min_severity]
        if not selected or not self._caught_up:
            return
        for delivery in self._deliveries:
            for notice in selected:
                delivery.outbox.add(notice)
        self._save()

    def _stack_end_notices(self) -> list[Notice]:
        """Return a notice that the stack is down, unless the learner logged the end of the run."""
        info = self._access.info()
        if info.ended is None and self._access.is_up():
            return []  # only this process was stopped, or the run is on another machine
        return self._triggers.stack_down_notices(info.ended, info.learner_end)

    def _save(self) -> None:
        """Write the state. If this fails, for example on a full disk, a restart may send messages twice."""
        self._saved_at = time.monotonic()
        if self._folder is None:
            return
        try:
            notifier_state.save(self._folder.path, self._state)
            self._save_failed = False
        except OSError as error:
            if not self._save_failed:
                log.warning("cannot write %s (%s)", notifier_state.FILE_NAME, error.strerror)
            self._save_failed = True


class Delivery:
    """A loop that sends one recipient's notices in a thread. `save` writes the outboxes to disk."""

    def __init__(self, run: str, recipient: Recipient, outbox: Outbox, save: Callable[[], None]) -> None:
        self.recipient, self.outbox = recipient, outbox
        self._run, self._save = run, save
        self._failures = 0

    async def run(self) -> None:
        """Send notices until cancelled."""
        while True:
            await self.send_next()
            await asyncio.sleep(CHECK_S)

    async def send_next(self) -> None:
        """Send the next message if the outbox allows one now."""
        notices, omitted = self.outbox.next_batch(time.time()), self.outbox.omitted
        if not notices:
            return
        failure = await asyncio.to_thread(self.recipient.send, Message(self._run, notices, omitted))
        if failure:
            self.outbox.failed_at = time.time()
        else:
            self.outbox.mark_sent(notices, omitted, time.time())
        self._log(failure)
        self._save()

    def _log(self, failure: str) -> None:
        """Log the first failure and the recovery, not every attempt."""
        name = self.recipient.name
        if failure:
            self._failures += 1
            if self._failures == 1:
                log.warning("sending to %s failed: %s; its messages are merged and retried later", name, failure)
        elif self._failures:
            log.info("sending to %s works again after %d failed attempts", name, self._failures)
            self._failures = 0
