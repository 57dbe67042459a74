"""The terminal output of `up`: lines or the monitor, and the output of the user's script."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from oven_core.terminal_text import clean
from oven_runs.process.child import describe_exit, short_path
from oven_runs.process.terminal import Foreground

GRACE_S = 5.0
HELD_LINES = 200
"""Maximum saved lines to print after the monitor ends. The log has all of them."""


class Screen:
    """Prints lines to `log` at once, and to the terminal unless the monitor is open there."""

    def __init__(self, out: Callable[[str], None], log: Path) -> None:
        self._out = out
        self._log = log
        self._held: list[str] = []
        self._missed = 0
        self._monitor: Foreground | None = None
        self._closing: asyncio.Task[None] | None = None

    def __call__(self, line: str) -> None:
        line = clean(line)
        with contextlib.suppress(OSError), self._log.open("a") as log:  # a full disk must not end the run
            log.write(line + "\n")
        if self._monitor is None:
            self._out(line)
            return
        self._held.append(line)
        if len(self._held) > HELD_LINES:
            del self._held[0]
            self._missed += 1

    async def open(self, command: Sequence[str], env: Mapping[str, str], closed: Callable[[], str]) -> None:
        """Give the terminal to the monitor. `closed` returns the line to print when the user quits it. Raises
        ProcessError."""
        self._monitor = monitor = await Foreground.start(command, env)
        self._closing = asyncio.create_task(self._until_closed(monitor, closed), name="monitor")

    @property
    def pid(self) -> int:
        """The monitor's process id; 0 while none is open."""
        return self._monitor.pid if self._monitor else 0

    async def closed(self) -> None:
        """Wait until the user quits the monitor. Return at once if none is open."""
        if self._closing is not None:
            await self._closing

    async def close(self) -> None:
        """End the monitor if one is open."""
        if self._monitor is not None:
            await self._monitor.end(GRACE_S)
        await self.closed()

    async def _until_closed(self, monitor: Foreground, closed: Callable[[], str]) -> None:
        code = await monitor.wait()
        self._monitor = None
        if self._missed:
            self._out(f"… {self._missed} lines before these are in {short_path(self._log)}")
        for line in self._held:
            self._out(line)
        self._held.clear()
        if line := closed():
            died = f"the monitor ended ({describe_exit(code)})" if code else "monitor closed"
            self(f"{died}; {line}")


POLL_S = 0.1


async def relay(log: Path, offset: int, ended: asyncio.Event) -> None:
    """Copy the file from `offset` to stdout until `ended` is set and everything is copied."""
    while True:
        final = ended.is_set()
        if log.exists():
            with log.open("rb") as source:
                source.seek(offset)
                new = source.read()
            offset += len(new)
            if new:
                with contextlib.suppress(OSError):  # the terminal was closed
                    sys.stdout.write(new.decode(errors="replace"))
                    sys.stdout.flush()
        if final:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await ended.wait()
