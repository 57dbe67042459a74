"""Delivery to one recipient, in a thread that cannot hold up the notifier."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable
from typing import Final

from oven_controller.notify.message import Message, Notice
from oven_controller.notify.outbox import Outbox
from oven_controller.notify.recipients import Recipient

log = logging.getLogger("oven.notify")

LIMIT_S: Final = 15.0
"""Time limit of one attempt. After that it counts as failed even if its thread is still busy."""


class Delivery:
    """Sends one recipient's notices as its outbox allows. `save` writes the outboxes to disk."""

    def __init__(self, run: str, recipient: Recipient, outbox: Outbox, save: Callable[[], None]) -> None:
        self.recipient, self.outbox = recipient, outbox
        self._run, self._save = run, save
        self._queued = asyncio.Event()
        self._thread: threading.Thread | None = None
        self._sending = False
        self._failures = 0

    def add(self, notice: Notice) -> None:
        """Queue a notice."""
        self.outbox.add(notice)
        self._queued.set()

    async def run(self) -> None:
        """Send notices until cancelled."""
        while True:
            self._queued.clear()
            if not await self.send_next():
                with contextlib.suppress(TimeoutError):
                    async with asyncio.timeout(self.outbox.wait_s(time.time())):
                        await self._queued.wait()

    async def send_next(self) -> bool:
        """Send one message; False if none is due."""
        notices = self.outbox.due(time.time())
        if not notices:
            return False
        omitted = self.outbox.omitted_with(notices)
        self._sending = True
        try:
            failure = await self._attempt(Message.of(self._run, notices, omitted))
        finally:
            self._sending = False
        if failure:
            self.outbox.failed(time.time())
        else:
            self.outbox.sent(notices, time.time())
        self._log(failure)
        self._save()
        return True

    async def idle(self) -> None:
        """Wait until no message is in flight and none is due."""
        while self._sending or self.outbox.wait_s(time.time()) == 0:
            await asyncio.sleep(0.02)

    async def _attempt(self, message: Message) -> str:
        """Why the message was not delivered; empty if it was."""
        if self._thread is not None and self._thread.is_alive():
            return "the previous attempt still hangs"
        loop = asyncio.get_running_loop()
        result: asyncio.Future[str] = loop.create_future()

        def work() -> None:
            failure = self.recipient.send(message)
            with contextlib.suppress(RuntimeError):  # the loop is closed, so nothing waits for the result
                loop.call_soon_threadsafe(lambda: None if result.done() else result.set_result(failure))

        self._thread = threading.Thread(target=work, name=f"send to {self.recipient.name}", daemon=True)
        self._thread.start()
        try:
            async with asyncio.timeout(LIMIT_S):
                return await result
        except TimeoutError:
            return f"no answer within {LIMIT_S:g} s"

    def _log(self, failure: str) -> None:
        """Log the first failure and the recovery, not every attempt."""
        name = self.recipient.name
        if failure:
            self._failures += 1
            if self._failures == 1:
                log.warning("%s does not accept messages: %s; they are merged and sent again later", name, failure)
        elif self._failures:
            log.info("%s accepts messages again after %d failed attempts", name, self._failures)
            self._failures = 0
