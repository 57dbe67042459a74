"""The common interface for reading and commanding a run, on this machine or another.

There are two implementations. `local_run.LocalRun` uses the run's folder. `remote_run.RemoteRun` uses an address and a
key to reach another machine. `run_finder.find_run` chooses between them.
"""

from __future__ import annotations

import asyncio
import contextlib
from abc import ABC, abstractmethod
from collections import deque
from collections.abc import AsyncGenerator, Awaitable, Callable
from contextlib import AbstractAsyncContextManager
from dataclasses import replace
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Final, TypeAlias, TypeVar

from oven_core.errors import BusError, RefusedError
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Observation, RunEnded, RunStarted
from oven_core.protocol.names import Subjects
from oven_core.security.signing import Keyring
from oven_core.terminal_text import warn
from oven_runs.home.run_info import RunInfo
from oven_runs.log.explanation import Explanations
from oven_runs.log.run_summary import RunSummary

if TYPE_CHECKING:  # slow to import, and the monitor should draw its first screen without it
    from oven_core.bus.connection import Bus
    from oven_core.bus.nats_client import InlineMessage
    from oven_core.protocol.permissions import Role

_Item = TypeVar("_Item")
LogView: TypeAlias = RunSummary | Explanations
"""A view of a run's log, to which the events are fed in order."""

RETRY_S: Final = 0.25
"""Seconds between two attempts to connect."""
MIN_POLL_S: Final = 0.05
"""Minimum seconds between two polls, so that a burst of events is fetched together."""
POLL_S: Final = 1.0
"""Seconds between two polls while the bus is silent. Each poll looks for new events and checks the stack."""


class RunAccess(ABC):
    """Access to one run for its readers and operators."""

    run: str
    """The run's name."""
    user: str
    """The user name that the log records for commands given through this access."""

    @property
    @abstractmethod
    def location(self) -> str:
        """The run's folder or address, for messages."""

    @property
    @abstractmethod
    def export_folder(self) -> Path:
        """The folder for screenshots and exports."""

    @abstractmethod
    def info(self) -> RunInfo:
        """Return run.json, or only the name and address of a run on another machine. Raises ConfigError."""

    @abstractmethod
    def is_up(self) -> bool:
        """Whether the run's stack is up. A remote run always counts as up, because only a connection can tell."""

    @abstractmethod
    def is_over(self, has_ended: bool) -> bool:
        """Whether reconnecting is pointless because the run is over. `has_ended` says if the log has a RunEnded."""

    @abstractmethod
    def connect(self, role: Role) -> AbstractAsyncContextManager[Bus]:
        """Connect as a monitor or an operator. Raises BusError, and RefusedError if the key is refused."""

    @abstractmethod
    def keyring(self, *, check: bool = True) -> Keyring:
        """Return a keyring for the log from its first event. `check` is passed to Keyring. Raises ConfigError."""

    @abstractmethod
    async def live_keyring(self, bus: Bus) -> Keyring:
        """Return a keyring for live messages, if possible without reading the log first. Raises ConfigError, and
        BusError if the keys are only in the log and no mesh answers."""

    @abstractmethod
    def raw_events(
        self, *, exact: bool = False, brief: bool = False, report: Callable[[str], object] = warn
    ) -> AsyncGenerator[Event]:
        """Yield every event so far, unverified. With `exact`, they come from the store or its copy, not from the mesh.
        With `brief`, superseded events may be omitted, which is ten times as fast. Raises BusError and ConfigError."""

    async def remaining_events(self, after: int) -> AsyncGenerator[Event]:
        """Yield a stopped run's events after the sequence number `after`, unverified. Raises ConfigError."""
        for event in tuple[Event]():  # no events: the loop makes this method a generator
            yield event

    @abstractmethod
    def stored(self, after: int = 0) -> AsyncGenerator[Event]:
        """Yield stored events after a sequence number, unverified. Raises BusError if only the mesh can read them."""

    def missing_messages(self) -> str:
        """Describe messages that are known to be missing from the log, or return an empty string."""
        return ""

    async def events(
        self,
        *,
        exact: bool = False,
        brief: bool = False,
        check: bool = True,
        until: int | None = None,
        keyring: Keyring | None = None,
        report: Callable[[str], object] = warn,
    ) -> AsyncGenerator[Event]:
        """Yield every event so far, verified. `exact`, `brief` and `report` are passed to `raw_events`. Without
        `keyring`, `check` is passed to `self.keyring`. Stop before the first observation after tick `until`."""
        keyring = keyring or self.keyring(check=check)
        async with contextlib.aclosing(self.raw_events(exact=exact, brief=brief, report=report)) as log:
            async for raw in log:
                event = keyring.verify(raw)
                if until is not None and isinstance(event.body, Observation) and event.body.tick > until:
                    return
                yield event

    async def read_view(
        self,
        view: LogView,
        *,
        report: Callable[[str], object] = warn,
        on_event: Callable[[Event], object] = lambda _: None,
    ) -> None:
        """Feed the log so far to a new view. `on_event` is called with each event that is read, and may raise to stop.
        `report` is passed to `raw_events`. Raises the errors of `events`."""
        async with contextlib.aclosing(self.events(brief=True, report=report)) as log:
            async for event in log:
                view.feed(event)
                on_event(event)

    async def newest(self, count: int) -> list[Event]:
        """Return the newest `count` events, verified."""
        newest = deque[Event](maxlen=count)
        async for event in self.events():
            newest.append(event)
        return list(newest)

    async def follow(
        self,
        report: Callable[[str], object] = warn,
        on_poll: Callable[[], object] = lambda: None,
        *,
        after: int = 0,
        keyring: Keyring | None = None,
    ) -> AsyncGenerator[Event]:
        """Yield events after a sequence number as they arrive, verified, until the stack is down. With `after`,
        `keyring` must have verified the events up to there.

        A live message only signals that there are new events. The events come from `history`, in order and with their
        sequence numbers. While the server or mesh restarts, this waits and calls `report`. `on_poll` is called when all
        available events have been read, at least every POLL_S. If the mesh ends before `history` has returned RunEnded,
        the live RunEnded is yielded instead. Raises RefusedError.
        """
        from oven_runs.access.log_sources import listen, read_history

        keyring = keyring or self.keyring()
        last_seq, has_ended = after, False
        live_end: Event | None = None

        async def listen_for_end(bus: Bus, run: str, wake: asyncio.Event) -> None:
            def on_message(message: InlineMessage) -> None:
                nonlocal live_end
                event = Event.from_message(0, message.subject, message.data, datetime.now(UTC), message.headers)
                if isinstance(event.body, RunEnded):
                    live_end = event

            await bus.subscribe_inline(Subjects(run).run, on_message)
            await listen(bus, run, wake)

        async def fetch(bus: Bus) -> AsyncGenerator[Event]:
            nonlocal last_seq, has_ended
            for event in map(keyring.verify, await read_history(bus, self.run, last_seq)):
                yield event
                last_seq, has_ended = event.seq, is_ended_after(event, has_ended)
            on_poll()

        def is_over() -> bool:
            return self.is_over(has_ended or live_end is not None)

        async with contextlib.aclosing(self.poll(listen_for_end, fetch, is_over, report)) as events:
            async for event in events:  # closed here, so that a reader that stops early also closes the connection
                yield event
        if live_end is not None and not has_ended and self.is_up():
            yield keyring.verify(replace(live_end, seq=last_seq + 1))
        if not self.is_up():
            async for event in self.events(report=report):
                if event.seq > last_seq:
                    yield event

    async def poll(
        self,
        listen: Callable[[Bus, str, asyncio.Event], Awaitable[None]],
        fetch: Callable[[Bus], AsyncGenerator[_Item]],
        is_over: Callable[[], bool],
        report: Callable[[str], object],
        interval_s: float = POLL_S,
    ) -> AsyncGenerator[_Item]:
        """Yield the items of `fetch` at once, and again whenever `listen` sets its event and after `interval_s`, until
        the stack is down. Reconnects until `is_over` returns true, and reports lost and restored connections. Raises
        RefusedError."""
        wake, is_lost = asyncio.Event(), False
        while self.is_up():
            try:
                async with self.connect("monitor") as bus:
                    await listen(bus, self.run, wake)
                    while self.is_up():
                        wake.clear()
                        async with contextlib.aclosing(fetch(bus)) as items:
                            async for item in items:
                                yield item
                        if is_lost:
                            report(f"run {self.run!r} can be read again")
                            is_lost = False
                        if not bus.is_connected:
                            break
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(interval_s):
                                await wake.wait()
                        await asyncio.sleep(MIN_POLL_S)
            except RefusedError:
                raise
            except BusError as error:
                if is_over():
                    return
                if not is_lost:
                    report(f"{error}; retrying until it answers")
                    is_lost = True
                await asyncio.sleep(RETRY_S)


def is_ended_after(event: Event, had_ended: bool) -> bool:
    """Whether the log ends with a RunEnded after this event. `had_ended` says whether it did before the event."""
    return isinstance(event.body, RunEnded) or (had_ended and not isinstance(event.body, RunStarted))
