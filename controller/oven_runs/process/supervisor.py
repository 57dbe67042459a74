"""Supervise a process: if it dies, report that, wait with exponential backoff, and restart it.

The new process continues from the log: the mesh replays it, agents request its history and the server has it on disk.
The prior service and committee members are stateless.
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
    """Delays before restarts, in seconds. After a life of `well_s` or more, the delay starts at `first_s` again."""

    first_s: float = 0.25
    factor: float = 2.0
    cap_s: float = 4.0
    well_s: float = 30.0
    most: int = 10
    """Maximum deaths in a row. After that the process is not restarted."""

    def delay_s(self, failures: int) -> float | None:
        """Return the delay after this many deaths in a row (from 1); None to give up."""
        if failures >= self.most:
            return None
        return min(self.cap_s, self.first_s * self.factor ** (failures - 1))

    def failures(self, before: int, well_s: float) -> int:
        """Return the deaths in a row, including one after `before` others. A life of `well_s` resets the count."""
        return 1 if well_s >= self.well_s else before + 1


@dataclass(frozen=True)
class Restartable:
    """How to start a process, and when it is ready."""

    name: str
    start: Callable[[], Awaitable[Child]]
    ready: Callable[[], Awaitable[None]]
    """Waits until the process started after this call is ready."""
    without: Callable[[], str]
    """Returns a phrase for people: the effect on the run when the process is missing."""


class Supervised:
    """A process that is restarted as needed until `end`. `child` is the current or last one."""

    def __init__(
        self,
        process: Restartable,
        child: Child,
        tell: Callable[[str], None],
        note: Callable[[str, int], None],
        policy: Backoff | None = None,
    ) -> None:
        """`child` is running and ready. `tell` receives lines for people. `note` receives the name and pid after
        restarts.
        """
        self.name = process.name
        self.child = child
        self.given_up = False
        self._process = process
        self._tell = tell
        self._note = note
        self._policy = policy or Backoff()
        self._ending = asyncio.Event()
        self._task = asyncio.create_task(self._supervise(), name=f"supervise-{process.name}")

    @property
    def lives(self) -> bool:
        return self.child.returncode is None

    async def end(self, grace_s: float) -> None:
        """Stop restarting. Send SIGTERM, and SIGKILL after the grace period."""
        self._ending.set()
        await self._task
        await self.child.end(grace_s)

    def kill(self) -> None:
        """Stop restarting and send SIGKILL."""
        self._ending.set()
        self.child.kill()

    async def _supervise(self) -> None:
        loop, failures = asyncio.get_running_loop(), 0
        well_since: float | None = loop.time()
        while await self._unless_ending(self.child.wait()):
            died = loop.time()
            code = self.child.returncode or 0
            self.child.close()
            failures = self._policy.failures(failures, died - well_since if well_since is not None else 0.0)
            delay = self._delay(failures, code)
            if delay is None or not await self._unless_ending(asyncio.sleep(delay)):
                return
            well_since = None
            ready = asyncio.ensure_future(self._process.ready())
            try:
                if (
                    await self._restart()
                    and await self._unless_ending(_ready_or_dead(ready, self.child))
                    and _succeeded(ready)
                ):
                    well_since = loop.time()
                    self._tell(f"{self.name} is back after {well_since - died:.1f} s (pid {self.child.pid})")
            finally:
                await end(ready)

    async def _restart(self) -> bool:
        try:
            self.child = await self._process.start()
        except ProcessError as error:  # the old child stays, so that its death counts once more
            self._tell(str(error).splitlines()[0])
            return False
        self._note(self.name, self.child.pid)
        return True

    def _delay(self, failures: int, code: int) -> float | None:
        """Report the death and return the delay before the restart. None means no restart."""
        death = end_of(self.child)
        without = self._process.without()
        where = f"see {short(self.child.log)}"
        if code == WRONG_SETTING:
            self.given_up = True
            self._tell(f"{death}; it is not restarted: {without}; {where}")
            return None
        delay = self._policy.delay_s(failures)
        row = f", {failures} times in a row" if failures > 1 else ""
        if delay is None:
            self.given_up = True
            self._tell(f"{death}{row}: given up; {without}; {where}")
        else:
            self._tell(f"{death}{row}: {without} until it is back; restarting it in {delay:g} s; {where}")
        return delay

    async def _unless_ending(self, awaitable: Awaitable[object]) -> bool:
        """Wait for the awaitable. Return False if `end` or `kill` was called first."""
        waiting, ending = asyncio.ensure_future(awaitable), asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait({waiting, ending}, return_when=asyncio.FIRST_COMPLETED)
            return not self._ending.is_set()
        finally:
            await end(waiting, ending)


def _succeeded(ready: asyncio.Future[None]) -> bool:
    return ready.done() and not ready.cancelled() and ready.exception() is None


async def _ready_or_dead(ready: asyncio.Future[None], child: Child) -> None:
    """Wait until the process is ready or dead. Cancelling this does not cancel `ready`."""
    ended = asyncio.ensure_future(child.wait())
    both: set[asyncio.Future[Any]] = {ready, ended}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end(ended)
