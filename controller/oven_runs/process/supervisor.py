"""Supervision of a process: one that dies is reported, waited for a little (exponential back-off), and started again.

What a process knows is in the log (the mesh replays it, agents ask for its history, the server has it on disk; the
prior service and committee members know nothing), so a new one continues where the old one was.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from oven_core.cancellation import end
from oven_core.errors import ProcessError
from oven_runs.process.child import WRONG_SETTING, Child, end_of, short


@dataclass(frozen=True)
class Backoff:
    """The policy, in seconds. A process that was well for `well_s` before it died begins anew at `first_s`."""

    first_s: float = 0.25
    factor: float = 2.0
    cap_s: float = 4.0
    well_s: float = 30.0
    most: int = 10
    """Deaths in a row after which it is given up."""

    def delay_s(self, failures: int) -> float | None:
        """How long to wait after the so-many-th death in a row (1 is the first); None: give it up."""
        if failures >= self.most:
            return None
        delay = self.first_s
        for _ in range(failures - 1):
            delay = min(self.cap_s, delay * self.factor)
        return min(self.cap_s, delay)

    def failures(self, before: int, well_s: float) -> int:
        """Deaths in a row, this one included, of a process that had been well for `well_s` after `before` of them."""
        return 1 if well_s >= self.well_s else before + 1


@dataclass(frozen=True)
class Kept:
    """One process, and how to have it again."""

    name: str
    start: Callable[[], Awaitable[Child]]
    ready: Callable[[], Awaitable[None]]
    """Comes back once the process that is started after this call shows that it is there."""
    without: Callable[[], str]
    """What its absence means to the run just then, for the terminal."""


class Supervised:
    """A process from its first start to `end`, over any number of lives. `child` is the present or the last one."""

    def __init__(
        self,
        kept: Kept,
        child: Child,
        tell: Callable[[str], None],
        note: Callable[[str, int], None],
        policy: Backoff | None = None,
    ) -> None:
        """`child` runs and is ready. `tell` takes lines for people, `note` (name, pid) of each new life."""
        self.name = kept.name
        self.child = child
        self.given_up = False
        self._kept = kept
        self._tell = tell
        self._note = note
        self._policy = policy or Backoff()
        self._ending = asyncio.Event()
        self._task = asyncio.create_task(self._keep(), name=f"supervise-{kept.name}")

    @property
    def lives(self) -> bool:
        return self.child.returncode is None

    async def end(self, grace_s: float) -> None:
        """No more lives: SIGTERM to this one, SIGKILL after the grace."""
        self._ending.set()
        await self._task
        await self.child.end(grace_s)

    def kill(self) -> None:
        """At once, and for good."""
        self._ending.set()
        self.child.kill()

    async def _keep(self) -> None:
        loop, failures = asyncio.get_running_loop(), 0
        well_since: float | None = loop.time()
        while await self._first(self.child.wait()):
            died = loop.time()
            code = self.child.returncode or 0
            self.child.close()
            failures = self._policy.failures(failures, died - well_since if well_since is not None else 0.0)
            delay = self._delay(failures, code)
            if delay is None or not await self._first(asyncio.sleep(delay)):
                return
            well_since = None
            ready = asyncio.ensure_future(self._kept.ready())
            try:
                if await self._again() and await self._first(_either(ready, self.child)) and _came(ready):
                    well_since = loop.time()
                    self._tell(f"{self.name} is back after {well_since - died:.1f} s (pid {self.child.pid})")
            finally:
                await end(ready)

    async def _again(self) -> bool:
        try:
            self.child = await self._kept.start()
        except ProcessError as error:  # the old child is still the last one: its death is counted once more
            self._tell(str(error).splitlines()[0])
            return False
        self._note(self.name, self.child.pid)
        return True

    def _delay(self, failures: int, code: int) -> float | None:
        """Until the next start, told; None when there is none."""
        death = end_of(self.child)
        without = self._kept.without()
        where = f"see {short(self.child.log)}"
        if code == WRONG_SETTING:
            self.given_up = True
            self._tell(f"{death}; it is not started again: {without}; {where}")
            return None
        delay = self._policy.delay_s(failures)
        row = f", {failures} times in a row" if failures > 1 else ""
        if delay is None:
            self.given_up = True
            self._tell(f"{death}{row}: given up; {without}; {where}")
        else:
            self._tell(f"{death}{row}: {without} until it is back; starting it in {delay:g} s; {where}")
        return delay

    async def _first(self, awaited: Awaitable[object]) -> bool:
        """Wait for it; False when the end of all lives was asked for first."""
        waiting, ending = asyncio.ensure_future(awaited), asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait({waiting, ending}, return_when=asyncio.FIRST_COMPLETED)
            return not self._ending.is_set()
        finally:
            await end(waiting, ending)


def _came(ready: asyncio.Future[None]) -> bool:
    return ready.done() and not ready.cancelled() and ready.exception() is None


async def _either(ready: asyncio.Future[None], child: Child) -> None:
    """Until it is ready or dead. (Cancelling this does not cancel `ready`.)"""
    ended = asyncio.ensure_future(child.wait())
    both: set[asyncio.Future[Any]] = {ready, ended}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end(ended)
