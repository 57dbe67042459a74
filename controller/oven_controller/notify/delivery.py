"""Delivery of one recipient's messages: one at a time, in a thread that a server which hangs cannot hold for long."""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
import time
from collections.abc import Callable

from oven_controller.notify import apprise_service
from oven_controller.notify.message import Message, Notice
from oven_controller.notify.pacing import Pacer
from oven_controller.notify.recipients import Recipient
from oven_controller.notify.webhook import Answer, post

log = logging.getLogger("oven.notify")

LIMIT_S = 15.0
"""Seconds of one attempt; after that it counts as failed, whatever its thread does."""


class Delivery:
    """Offer it notices; `run` sends them as its pacer allows. `save` writes the pacers' state down."""

    def __init__(self, recipient: Recipient, pacer: Pacer, save: Callable[[], None]) -> None:
        self.recipient, self.pacer = recipient, pacer
        self._save = save
        self._news = asyncio.Event()
        self._thread: threading.Thread | None = None
        self._failing = 0

    def offer(self, notice: Notice) -> None:
        if self.pacer.offer(notice):
            self._news.set()

    async def run(self) -> None:
        """Until cancelled."""
        while True:
            self._news.clear()
            if not await self.send_one():
                await self._wait()

    async def send_one(self) -> bool:
        """Send what is due; False where nothing is."""
        message = self.pacer.take(time.time())
        if message is None:
            return False
        self._save()  # before it leaves: a process that dies now must not send it again
        answer = await self._attempt(message)
        if answer.failure:
            self.pacer.failed(time.time(), answer.rest_s)
        else:
            self.pacer.sent()
        self._tell(answer.failure)
        self._save()
        return True

    async def idle(self) -> None:
        """Until nothing is on its way and nothing may be sent for now."""
        while self.pacer.state.sending is not None or self.pacer.wait_s(time.time()) == 0:
            await asyncio.sleep(0.02)

    async def _wait(self) -> None:
        try:
            async with asyncio.timeout(self.pacer.wait_s(time.time())):
                await self._news.wait()
        except TimeoutError:
            pass

    async def _attempt(self, message: Message) -> Answer:
        if self._thread is not None and self._thread.is_alive():
            return Answer("the attempt before it still hangs")
        loop = asyncio.get_running_loop()
        done: asyncio.Future[Answer] = loop.create_future()

        def take(answer: Answer) -> None:
            if not done.done():
                done.set_result(answer)

        def work() -> None:
            answer = attempt(self.recipient, message)
            with contextlib.suppress(RuntimeError):  # the loop is closed: nobody waits
                loop.call_soon_threadsafe(take, answer)

        self._thread = threading.Thread(target=work, name=f"send to {self.recipient.name}", daemon=True)
        self._thread.start()
        try:
            async with asyncio.timeout(LIMIT_S):
                return await done
        except TimeoutError:
            return Answer(f"no answer within {LIMIT_S:g} s")

    def _tell(self, failure: str) -> None:
        """In the process's log, when it begins to fail and when it works again: not at each attempt."""
        name = self.recipient.name
        if failure:
            self._failing += 1
            if self._failing == 1:
                log.warning("%s takes no messages: %s; they are merged and tried again", name, failure)
        elif self._failing:
            log.info("%s takes messages again, after %d attempts that failed", name, self._failing)
            self._failing = 0


def attempt(recipient: Recipient, message: Message) -> Answer:
    """One attempt, within the time limits of what sends it."""
    if recipient.service is None:
        return post(recipient, message, time.time())
    return Answer(recipient.without_secrets(apprise_service.send(recipient.service, message)))
