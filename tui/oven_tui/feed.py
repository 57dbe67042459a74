"""The feed of one run's log: live, from its export, and live again when the stack comes back.

What is heard live only says that there is something to ask for; order and sequence come from `history`, asked at most
every GAP_S, so that a fast run costs the mesh no more than a slow one.
"""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from typing import Literal

from nats.errors import Error as NatsError

from oven_controller.bus.connection import Bus
from oven_controller.errors import BusError, ConfigError, OvenError, reason
from oven_controller.protocol.events import Event
from oven_controller.runs import log_sources
from oven_controller.runs.run_access import RunAccess, ends
from oven_controller.security.signing import Keyring

GAP_S = 0.2
RETRY_S = 0.5
LOOK_S = 1.0
BATCH = 256

Link = Literal["connecting", "reading", "connected", "no mesh", "reconnecting", "down", "unreadable"]
"""`no mesh`: no replica answers, so the stored log is read. `down`: the stack is, so what is shown is the past."""


class Feed:
    """Hands each batch of new events to `take`, in order and judged, and each change of the connection to `say` with a
    detail."""

    def __init__(
        self, access: RunAccess, take: Callable[[list[Event]], None], say: Callable[[Link, str], None]
    ) -> None:
        self._access = access
        self._take = take
        self._say = say
        self._last = 0
        self._ended = False
        self._keyring: Keyring | None = None

    async def run(self) -> None:
        """Until cancelled. Nothing that the bus, the stack or the disk does ends it."""
        while True:
            try:
                if self._access.up():
                    await self._live()
                else:
                    await self._past()
            except (OvenError, NatsError, OSError, ValueError) as error:
                up = self._access.up()
                if up and self._access.over(self._ended):
                    self._say("down", "")
                else:
                    self._say("reconnecting" if up else "unreadable", reason(error))
                await asyncio.sleep(RETRY_S if up else LOOK_S)

    def _give(self, events: list[Event]) -> None:
        fresh = [event for event in events if event.seq > self._last]
        if fresh:
            keyring = self._keyring = self._keyring or self._access.keyring()
            judged = [keyring.verify(event) for event in fresh]
            for event in judged:
                self._ended = ends(event, self._ended)
            self._last = fresh[-1].seq
            self._take(judged)

    async def _live(self) -> None:
        """Until the stack is down. Raises BusError when the server is gone."""
        heard = asyncio.Event()
        async with self._access.connected("monitor") as bus:
            self._say("reading", "")
            await log_sources.listen(bus, self._access.run, heard)
            loop = asyncio.get_running_loop()
            while self._access.up():
                heard.clear()
                asked = loop.time()
                async for events in self._news(bus):
                    self._give(events)
                    await asyncio.sleep(0)
                if not bus.client.is_connected:
                    raise BusError("the server went away")
                try:
                    async with asyncio.timeout(LOOK_S):
                        await heard.wait()
                except TimeoutError:
                    continue
                await asyncio.sleep(max(0.0, asked + GAP_S - loop.time()))

    async def _news(self, bus: Bus) -> AsyncIterator[list[Event]]:
        """What the mesh has after the last event; without a mesh, what is stored."""
        if not bus.client.is_connected:
            raise BusError("the server went away")
        try:
            async for events in log_sources.batches(bus, self._access.run, self._last):
                yield events
            self._say("connected", "")
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
        """What a run that is down left behind; then wait until its stack is up again."""
        part: list[Event] = []
        async for event in self._access.past(self._last):
            part.append(event)
            if len(part) >= BATCH:
                self._give(part)
                part = []
                await asyncio.sleep(0)
        self._give(part)
        if not self._last:
            raise ConfigError(f"the log of run {self._access.run!r} is empty")
        self._say("down", "")
        while not self._access.up():
            await asyncio.sleep(LOOK_S)
