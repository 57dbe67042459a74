"""Restart processes that die, with exponential backoff.

A restarted process continues from the log. The mesh replays the log, agents request its events, and the server has it
on disk. Committee members and the prior service, which answers questions about the knowledge graph, are stateless.
"""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass
from typing import Any

from oven_core.cancellation import end
from oven_core.errors import ProcessError
from oven_runs.process.child_process import WRONG_SETTING, Child, describe_end, short_path


@dataclass(frozen=True)
class Backoff:
    """Delays before restarts, in seconds. They grow from `first_s` by `factor` up to `cap_s`."""

    first_s: float = 0.25
    factor: float = 2.0
    cap_s: float = 4.0
    healthy_after_s: float = 30.0
    """Seconds of running after which the delays start at `first_s` again."""
    max_failures: int = 10
    """Number of deaths in a row after which the process is not restarted again."""

    def delay_s(self, failures: int) -> float | None:
        """Return the delay after this many deaths in a row, at least 1; None to give up."""
        if failures >= self.max_failures:
            return None
        return min(self.cap_s, self.first_s * self.factor ** (failures - 1))

    def count_failure(self, previous_failures: int, running_s: float) -> int:
        """Return the number of deaths in a row after one more. A process that ran long enough resets the count."""
        return 1 if running_s >= self.healthy_after_s else previous_failures + 1


@dataclass(frozen=True)
class Restartable:
    """A process that can be restarted: how to start it, and how to tell when it is ready."""

    name: str
    start: Callable[[], Awaitable[Child]]
    ready: Callable[[], Awaitable[None]]
    """Waits until the process is ready. It is called before `start`, so that it cannot miss the first message."""
    effect_of_absence: Callable[[], str]
    """Returns a phrase for the user that says how the run continues without the process."""


class SupervisedProcess:
    """A process that is restarted whenever it dies, until `end` is called. `child` is the current or last one."""

    def __init__(
        self,
        process: Restartable,
        child: Child,
        report: Callable[[str], None],
        record_pid: Callable[[str, int], None],
        backoff: Backoff | None = None,
    ) -> None:
        """Supervise `child`, which is running and ready. `report` receives lines for the user. `record_pid` receives
        the name and pid after each restart."""
        self.name = process.name
        self.child = child
        self.has_given_up = False
        self._process = process
        self._report = report
        self._record_pid = record_pid
        self._backoff = backoff or Backoff()
        self._ending = asyncio.Event()
        self._task = asyncio.create_task(self._supervise(), name=f"supervise-{process.name}")

    @property
    def is_alive(self) -> bool:
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
        ready_since: float | None = loop.time()
        while await self._wait_unless_ending(self.child.wait()):
            death_time = loop.time()
            code = self.child.returncode or 0
            self.child.close()
            running_s = death_time - ready_since if ready_since is not None else 0.0
            failures = self._backoff.count_failure(failures, running_s)
            delay = self._report_death(failures, code)
            if delay is None or not await self._wait_unless_ending(asyncio.sleep(delay)):
                return
            ready_since = None
            ready = asyncio.ensure_future(self._process.ready())
            try:
                if not await self._restart():
                    continue
                waited = await self._wait_unless_ending(_wait_until_ready_or_dead(ready, self.child))
                if waited and _has_succeeded(ready):
                    ready_since = loop.time()
                    self._report(f"{self.name} is back after {ready_since - death_time:.1f} s (pid {self.child.pid})")
            finally:
                await end(ready)

    async def _restart(self) -> bool:
        try:
            self.child = await self._process.start()
        except ProcessError as error:  # the old child stays in place, so the loop counts another death
            self._report(str(error).splitlines()[0])
            return False
        self._record_pid(self.name, self.child.pid)
        return True

    def _report_death(self, failures: int, code: int) -> float | None:
        """Report the death and return the delay before the restart. None means no restart."""
        death = describe_end(self.child)
        effect = self._process.effect_of_absence()
        log_hint = f"see {short_path(self.child.log)}"
        if code == WRONG_SETTING:
            self.has_given_up = True
            self._report(f"{death}; it is not restarted: {effect}; {log_hint}")
            return None
        delay = self._backoff.delay_s(failures)
        repeats = f", {failures} times in a row" if failures > 1 else ""
        if delay is None:
            self.has_given_up = True
            self._report(f"{death}{repeats}; giving up on it: {effect}; {log_hint}")
        else:
            self._report(f"{death}{repeats}: {effect} until it is back; restarting it in {delay:g} s; {log_hint}")
        return delay

    async def _wait_unless_ending(self, awaitable: Awaitable[object]) -> bool:
        """Wait for the awaitable. Return False if `end` or `kill` was called first."""
        waiting, ending = asyncio.ensure_future(awaitable), asyncio.ensure_future(self._ending.wait())
        try:
            await asyncio.wait({waiting, ending}, return_when=asyncio.FIRST_COMPLETED)
            return not self._ending.is_set()
        finally:
            await end(waiting, ending)


def _has_succeeded(ready: asyncio.Future[None]) -> bool:
    return ready.done() and not ready.cancelled() and ready.exception() is None


async def _wait_until_ready_or_dead(ready: asyncio.Future[None], child: Child) -> None:
    """Wait until the process is ready or dead. Cancelling this does not cancel `ready`."""
    exit_task = asyncio.ensure_future(child.wait())
    both: set[asyncio.Future[Any]] = {ready, exit_task}
    try:
        await asyncio.wait(both, return_when=asyncio.FIRST_COMPLETED)
    finally:
        await end(exit_task)
