"""Bounded queue between a subscription and one reader of the log."""

from __future__ import annotations

import asyncio
from collections import deque

from oven_core.bus.nats_client import InlineMessage

AHEAD = 65_536
"""Messages that wait for a reader of the log."""
TURN = 256
"""After so many the reader lets others have their turn."""
LOOK_S = 0.5
"""How long a reader waits before it looks whether the connection was lost meanwhile."""


class ReadQueue:
    """Messages for one reader of the log. Beyond AHEAD they are dropped, which the reader sees as a gap."""

    def __init__(self) -> None:
        self._messages: deque[InlineMessage] = deque()
        self._news: asyncio.Future[None] | None = None
        self._taken = 0

    def put(self, message: InlineMessage) -> None:
        if len(self._messages) < AHEAD:
            self._messages.append(message)
        if self._news is not None and not self._news.done():
            self._news.set_result(None)

    async def next(self) -> InlineMessage | None:
        """None if nothing came within LOOK_S. To wait costs more than all the rest of reading, so no one waits for what
        is there; but now and then the connection has its turn."""
        self._taken += 1
        if self._taken % TURN == 0:
            await asyncio.sleep(0)
        if not self._messages:
            loop = asyncio.get_running_loop()
            self._news = news = loop.create_future()
            timer = loop.call_later(LOOK_S, _done, news)
            try:
                await news
            finally:
                timer.cancel()
                self._news = None
        return self._messages.popleft() if self._messages else None


def _done(future: asyncio.Future[None]) -> None:
    if not future.done():
        future.set_result(None)
