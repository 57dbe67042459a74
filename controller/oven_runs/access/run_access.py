"""Access to one run for who reads or commands it, wherever the run's folder is.

Two forms: `local_run.LocalRun` has the run's folder; `remote_run.RemoteRun` has an address and a key, on another
machine. `run_finder.find_run` says which one a command means.
"""

from __future__ import annotations

import asyncio
import contextlib
import sys
from abc import ABC, abstractmethod
from collections.abc import AsyncGenerator, AsyncIterator, Callable
from contextlib import AbstractAsyncContextManager
from pathlib import Path
from typing import TYPE_CHECKING, Final

from oven_core.errors import BusError, RefusedError
from oven_core.protocol.events import Event
from oven_core.protocol.messages import RunEnded, RunStarted
from oven_core.protocol.permissions import Role
from oven_core.security.signing import Keyring
from oven_core.terminal_text import clean
from oven_runs.home.run_folder import RunInfo

if TYPE_CHECKING:  # it takes as long to import as all the rest, and the monitor paints first
    from oven_core.bus.connection import Bus


def warn(line: str) -> None:
    """On stderr, no matter who reads the log."""
    print(f"warning: {clean(line)}", file=sys.stderr, flush=True)


AGAIN_S: Final = 0.25
"""Between two attempts to connect, in seconds."""
LOOK_S: Final = 1.0
"""While the bus is silent, a follower looks for new events, and whether the stack is up, so often, in seconds."""


class RunAccess(ABC):
    """A run as its readers and operators reach it."""

    run: str
    """Its name."""
    by: str
    """The name that commands are given under, as the log has it."""

    @property
    @abstractmethod
    def place(self) -> str:
        """Its folder or its address, for people."""

    @property
    @abstractmethod
    def arguments(self) -> list[str]:
        """How the monitor's process is told of this run."""

    @property
    @abstractmethod
    def saves_to(self) -> Path:
        """Where a reader's pictures and exports of it go."""

    @abstractmethod
    def info(self) -> RunInfo:
        """What run.json says; from elsewhere its name and address, and what the log has says the rest. Raises
        ConfigError."""

    @abstractmethod
    def up(self) -> bool:
        """Whether its stack is up. One that is reached from elsewhere counts as up: connecting shows whether it is."""

    @abstractmethod
    def over(self, ended: bool) -> bool:
        """Whether a connection that is lost stays lost. `ended`: the log ends with a RunEnded."""

    @abstractmethod
    def connected(self, role: Role) -> AbstractAsyncContextManager[Bus]:
        """A connection, as a monitor or an operator. Raises RefusedError where the key is not one of that role's or is
        not taken, BusError where no server answers."""

    @abstractmethod
    def keyring(self, *, check: bool = True) -> Keyring:
        """What verifies its log from the first event on. `check` False: as Keyring has it. Raises ConfigError."""

    @abstractmethod
    async def keyring_now(self, bus: Bus) -> Keyring:
        """What verifies what is heard live, without the log before it. Raises BusError where the keys have to be asked
        from the mesh, and none answers; ConfigError."""

    @abstractmethod
    def entries(self, *, exact: bool = False, tell: Callable[[str], object] = warn) -> AsyncGenerator[Event]:
        """Every event so far, unjudged. `exact` asks the log itself where that can be. `tell` hears what is wrong with
        the log. Raises BusError, ConfigError."""

    @abstractmethod
    def past(self, after: int) -> AsyncGenerator[Event]:
        """What a run that is down left behind, unjudged, for who has the events up to `after`. Raises ConfigError."""

    @abstractmethod
    def stored(self, after: int = 0) -> AsyncGenerator[Event]:
        """The stored events after a sequence, unjudged, without a mesh. Raises BusError where only the mesh gives
        them."""

    @abstractmethod
    def missing(self) -> str:
        """What its log is known to lack: a sentence; empty where nothing is."""

    async def events(
        self, *, exact: bool = False, check: bool = True, tell: Callable[[str], object] = warn
    ) -> AsyncGenerator[Event]:
        """Every event so far, judged. `check`: as `keyring` has it; the rest as `entries`."""
        keyring = self.keyring(check=check)
        async with contextlib.aclosing(self.entries(exact=exact, tell=tell)) as log:
            async for entry in log:
                yield keyring.verify(entry)

    async def follow(self, tell: Callable[[str], object] = warn) -> AsyncIterator[Event]:
        """Events as they come, judged, until the stack is down. What is heard live only says that there is something to
        ask for: order and sequence come from `history`. A server or a mesh that is being started again is waited for,
        and `tell` hears of it. Raises RefusedError."""
        from oven_runs.access.log_sources import history, listen

        heard, keyring, last, ended, away = asyncio.Event(), self.keyring(), 0, False, False
        while self.up():
            try:
                async with self.connected("monitor") as bus:
                    await listen(bus, self.run, heard)
                    while self.up():
                        heard.clear()
                        for event in map(keyring.verify, await history(bus, self.run, last)):
                            yield event
                            last, ended = event.seq, ends(event, ended)
                        if away:
                            tell(f"the log of run {self.run!r} is read again, up to event {last}")
                            away = False
                        with contextlib.suppress(TimeoutError):
                            async with asyncio.timeout(LOOK_S):
                                await heard.wait()
            except RefusedError:
                raise
            except BusError as error:
                if self.over(ended):
                    break
                if not away:
                    tell(f"{error}; it is tried again until it answers")
                    away = True
                await asyncio.sleep(AGAIN_S)
        if not self.up():
            async for event in self.events(tell=tell):
                if event.seq > last:
                    yield event


def ends(event: Event, ended: bool) -> bool:
    """Whether the log ends with a RunEnded once it has this event; `ended`: whether it did before."""
    return isinstance(event.body, RunEnded) or (ended and not isinstance(event.body, RunStarted))
