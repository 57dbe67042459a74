"""A background task of the stack that follows the run's log."""

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
    """A task that reads and verifies a run's log from its beginning while the context is open."""

    def __init__(
        self,
        bus: Bus,
        run: str,
        keyring: Keyring,
        head: int,
        on_replayed: Callable[[Event], None],
        on_live: Callable[[Event], None],
        on_raw: Callable[[Event], None] = lambda _: None,
    ) -> None:
        """Set the callbacks. `on_replayed` receives events up to number `head`, and `on_live` receives the later ones.
        `on_raw` receives every event before it is verified."""
        self._bus, self._run, self._keyring, self._head = bus, run, keyring, head
        self._on_replayed = on_replayed
        self._on_live = on_live
        self._on_raw = on_raw
        self._last_seq = 0
        self._join_counts: Counter[str] = Counter()
        self._changed = asyncio.Condition()

    async def __aenter__(self) -> LogWatch:
        self.task = asyncio.create_task(self._read(), name="watch")
        return self

    async def __aexit__(self, *_: object) -> None:
        await end(self.task)

    async def _read(self) -> None:
        async for raw in self._bus.read(self._run):
            self._on_raw(raw)
            event = self._keyring.verify(raw)
            if event.seq <= self._head:
                self._on_replayed(event)
            else:
                self._on_live(event)
                if isinstance(event.body, AgentStatus) and event.body.state == "joined":
                    self._join_counts[event.author] += 1
            async with self._changed:
                self._last_seq = event.seq
                self._changed.notify_all()

    def wait_for_joins(self, *agents: str) -> Awaitable[None]:
        """Wait until each of the agents has joined again. Joins count from this call, even if it is awaited later."""
        return self._wait_for_joins({agent: self._join_counts[agent] + 1 for agent in agents})

    async def _wait_for_joins(self, counts: dict[str, int]) -> None:
        async with self._changed:
            await self._changed.wait_for(lambda: all(self._join_counts[name] >= n for name, n in counts.items()))

    async def wait_for(self, seq: int) -> None:
        """Wait until the event with this sequence number has been passed to its callback."""
        async with self._changed:
            await self._changed.wait_for(lambda: self._last_seq >= seq)
