"""A background reader of the run's log, for the stack itself."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import Awaitable, Callable

from oven_core.bus.connection import Bus
from oven_core.cancellation import end
from oven_core.protocol.events import Event
from oven_core.protocol.messages import AgentStatus
from oven_core.security.signing import Keyring


class LogWatch:
    """Reads and verifies the log of `run` from its beginning, in a task that runs while the context is open."""

    def __init__(
        self,
        bus: Bus,
        run: str,
        keyring: Keyring,
        head: int,
        replayed: Callable[[Event], None],
        live: Callable[[Event], None],
        raw: Callable[[Event], None] = lambda _: None,
    ) -> None:
        """Events up to `head` go to `replayed`, later ones to `live`, and each one unverified to `raw`."""
        self._keyring = keyring
        self._bus = bus
        self._run = run
        self._head = head
        self._replayed = replayed
        self._live = live
        self._raw = raw
        self._seq = 0
        self._joined: Counter[str] = Counter()
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> LogWatch:
        self.task = asyncio.create_task(self._read(), name="watch")
        return self

    async def __aexit__(self, *_: object) -> None:
        await end(self.task)

    async def _read(self) -> None:
        async for raw in self._bus.read(self._run):
            self._raw(raw)
            event = self._keyring.verify(raw)
            if event.seq <= self._head:
                self._replayed(event)
            else:
                self._live(event)
                if isinstance(event.body, AgentStatus) and event.body.state == "joined":
                    self._joined[event.author] += 1
            async with self._changed:
                self._seq = event.seq
                self._changed.notify_all()

    def wait_for_joins(self, *agents: str) -> Awaitable[None]:
        """Wait until each of the agents has joined once more, counted from this call."""
        return self._wait_for_joins({agent: self._joined[agent] + 1 for agent in agents})

    async def _wait_for_joins(self, times: dict[str, int]) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: all(self._joined[agent] >= n for agent, n in times.items()))

    async def wait_for(self, seq: int) -> None:
        """Wait until the event with this sequence has been passed to its callback."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._seq >= seq)
