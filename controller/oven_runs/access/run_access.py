"""The common interface for reading and commanding a run, on this machine or another.

There are two implementations. `local_run.LocalRun` has the run's folder. `remote_run.RemoteRun` has an address and a
key, on another machine. `run_finder.find_run` chooses between them.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeVar

from oven_core.errors import BusError, RefusedError
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Observation, RunEnded, RunStarted
from oven_core.protocol.names import Subjects
from oven_core.protocol.permissions import Role
from oven_core.security.signing import Keyring
from oven_core.terminal_text import clean
from oven_runs.home.run_folder import RunInfo

if TYPE_CHECKING:  # takes as long to import as everything else together, and the monitor paints first
    from oven_core.bus.connection import Bus
    from oven_core.bus.nats_client import InlineMessage

_Item = TypeVar("_Item")

RETRY_S: Final = 0.25
"""Seconds between two attempts to connect."""
GAP_S: Final = 0.05
"""Minimum seconds between two looks of a follower, so that a burst of events is fetched together."""
POLL_S: Final = 1.0
"""Seconds after which a follower looks for new events, and whether the stack is up, while the bus is silent."""


def warn(line: str) -> None:
    """Print a warning on stderr."""
    print(f"warning: {clean(line)}", file=sys.stderr, flush=True)


class RunAccess(ABC):
    """Access to one run for its readers and operators."""

    run: str
    """The run's name."""
    by: str
    """The user name that the log records for commands given through this access."""

    @property
    @abstractmethod
    def location(self) -> str:
        """The run's folder or address, for people."""

    @property
    @abstractmethod
    def export_folder(self) -> Path:
        """The folder for pictures and exports."""

    @abstractmethod
    def info(self) -> RunInfo:
        """Return run.json, or only the name and address of a run on another machine. Raises ConfigError."""

    @abstractmethod
    def up(self) -> bool:
        """Whether the run's stack is up. A remote run counts as up, because only connecting shows whether it is."""

    @abstractmethod
    def is_over(self, ended: bool) -> bool:
        """Whether reconnecting is pointless. `ended`: the log ends with a RunEnded."""

    @abstractmethod
    def connected(self, role: Role) -> AbstractAsyncContextManager[Bus]:
        """Connect as a monitor or an operator. Raises RefusedError for the key, BusError without a server."""

    @abstractmethod
    def keyring(self, *, check: bool = True) -> Keyring:
        """Return a keyring that verifies the log from its first event. `check` is Keyring's. Raises ConfigError."""

    @abstractmethod
    async def live_keyring(self, bus: Bus) -> Keyring:
        """Return a keyring for live messages, without reading the log first. Raises BusError if the keys have to come
        from the mesh and none answers, and ConfigError."""

    @abstractmethod
    def raw_events(
        self, *, exact: bool = False, brief: bool = False, tell: Callable[[str], object] = warn
    ) -> AsyncGenerator[Event]:
        """Yield every event so far, unverified. Raises BusError and ConfigError.

        `exact` reads the log itself. `brief` may omit superseded events (brief_log), which is ten times as fast.
        """

    async def past(self, after: int) -> AsyncGenerator[Event]:
        """Yield the events that a stopped run left after sequence `after`, unverified. Raises ConfigError."""
        for event in tuple[Event]():
            yield event

    @abstractmethod
    def stored(self, after: int = 0) -> AsyncGenerator[Event]:
        """Yield the stored events after a sequence, unverified. Raises BusError if only the mesh has them."""

    def missing(self) -> str:
        """Return a sentence about known missing messages in the log; empty if it is complete."""
        return ""

    async def events(
        self,
        *,
        exact: bool = False,
        brief: bool = False,
        check: bool = True,
        until: int | None = None,
        keyring: Keyring | None = None,
        tell: Callable[[str], object] = warn,
    ) -> AsyncGenerator[Event]:
        """Yield every event so far, verified. The options are those of `keyring`, or a keyring, and `raw_events`.

        `until` stops before the first observation after that tick.
        """
        keyring = keyring or self.keyring(check=check)
        async with contextlib.aclosing(self.raw_events(exact=exact, brief=brief, tell=tell)) as log:
            async for raw in log:
                event = keyring.verify(raw)
                if until is not None and isinstance(event.body, Observation) and event.body.tick > until:
                    return
                yield event

    async def newest(self, count: int) -> list[Event]:
        """Return the newest `count` events, verified."""
        newest = deque[Event](maxlen=count)
        async for event in self.events():
            newest.append(event)
        return list(newest)

    async def follow(
        self, tell: Callable[[str], object] = warn, looked: Callable[[], object] = lambda: None
    ) -> AsyncGenerator[Event]:
        """Yield events as they come, verified, until the stack is down.

        Live messages only signal that there is something new. The events come from `history`, in order and with their
        sequence. Waits for a server or mesh that restarts, and reports it through `tell`. `looked` is called when all
        available events have been read, at least every POLL_S. If the mesh is gone before the run's end was read, the
        live message takes its place. Raises RefusedError.
        """
        from oven_runs.access.log_sources import history, listen

        keyring, last_seq, ended = self.keyring(), 0, False
        live_end: Event | None = None

        async def listen_for_end(bus: Bus, run: str, wake: asyncio.Event) -> None:
            def hear(message: InlineMessage) -> None:
                nonlocal live_end
                event = Event.from_message(0, message.subject, message.data, datetime.now(UTC), message.headers)
                if isinstance(event.body, RunEnded):
                    live_end = event

            await bus.subscribe_inline(Subjects(run).run, hear)
            await listen(bus, run, wake)

        async def fetch(bus: Bus) -> AsyncGenerator[Event]:
            nonlocal last_seq, ended
            for event in map(keyring.verify, await history(bus, self.run, last_seq)):
                yield event
                last_seq, ended = event.seq, ends(event, ended)
            looked()

        async for event in self.polled(
            listen_for_end, fetch, lambda: self.is_over(ended or live_end is not None), tell
        ):
            yield event
        if live_end is not None and not ended and self.up():
            yield keyring.verify(replace(live_end, seq=last_seq + 1))
        if not self.up():
            async for event in self.events(tell=tell):
                if event.seq > last_seq:
                    yield event

    async def polled(
        self,
        listen: Callable[[Bus, str, asyncio.Event], Awaitable[None]],
        fetch: Callable[[Bus], AsyncGenerator[_Item]],
        over: Callable[[], bool],
        tell: Callable[[str], object],
    ) -> AsyncGenerator[_Item]:
        """Yield the results of `fetch`, at first and whenever `listen`'s event is set, until the stack is down.

        Reconnects, and reports it through `tell`, until reconnecting is pointless (`over`). Raises RefusedError.
        """
        wake, lost = asyncio.Event(), False
        while self.up():
            try:
                async with self.connected("monitor") as bus:
                    await listen(bus, self.run, wake)
                    while self.up():
                        wake.clear()
                        async for item in fetch(bus):
                            yield item
                        if lost:
                            tell(f"run {self.run!r} can be read again")
                            lost = False
                        if not bus.connected:
                            break
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(POLL_S):
                                await wake.wait()
                        await asyncio.sleep(GAP_S)
            except RefusedError:
                raise
            except BusError as error:
                if over():
                    return
                if not lost:
                    tell(f"{error}; retrying until it answers")
                    lost = True
                await asyncio.sleep(RETRY_S)


def ends(event: Event, ended: bool) -> bool:
    """Whether the log ends with a RunEnded after this event. `ended`: whether it did before."""
    return isinstance(event.body, RunEnded) or (ended and not isinstance(event.body, RunStarted))
