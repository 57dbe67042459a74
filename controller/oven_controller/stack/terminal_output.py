"""The terminal output of `up`: lines, the monitor, and the output of the user's script."""

from __future__ import annotations

import asyncio
import contextlib
import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path

from oven_core.terminal_text import clean
from oven_runs.home.run_folder import RunFolder
from oven_runs.process.child_process import describe_exit, short_path
from oven_runs.process.foreground_process import ForegroundProcess

GRACE_S = 5.0
"""Grace period in seconds for the monitor to end."""
POLL_S = 0.1
"""Seconds between two reads of the learner's or script's log."""
PREPARATION_S = 10.0
"""Minimum seconds between two lines about the same stage of the learner's preparation."""
MAX_HELD_LINES = 200
"""Maximum number of lines to hold back while the monitor is open and to print afterwards. The log has all lines."""


class Screen:
    """Writes lines to the file `log` immediately, and prints them when no monitor is open in the terminal."""

    def __init__(self, out: Callable[[str], None], log: Path) -> None:
        self._out = out
        self._log = log
        self._held_lines: list[str] = []
        self._dropped_lines = 0
        self._monitor: ForegroundProcess | None = None
        self._close_task: asyncio.Task[None] | None = None

    def __call__(self, line: str) -> None:
        line = clean(line)
        with contextlib.suppress(OSError), self._log.open("a") as log:  # a full disk must not end the run
            log.write(line + "\n")
        if self._monitor is None:
            self._out(line)
            return
        self._held_lines.append(line)
        if len(self._held_lines) > MAX_HELD_LINES:
            del self._held_lines[0]
            self._dropped_lines += 1

    async def open_monitor(self, command: Sequence[str], env: Mapping[str, str], on_closed: Callable[[], str]) -> None:
        """Open the monitor. `on_closed` returns the line to print when it is closed. Raises ProcessError."""
        self._monitor = monitor = await ForegroundProcess.start(command, env)
        self._close_task = asyncio.create_task(self._wait_until_closed(monitor, on_closed), name="monitor")

    @property
    def monitor_pid(self) -> int:
        """The monitor's process id, or 0 if none is open."""
        return self._monitor.pid if self._monitor else 0

    async def wait_for_monitor(self) -> None:
        """Wait until the user quits the monitor. Return immediately if none is open."""
        if self._close_task is not None:
            await self._close_task

    async def close_monitor(self) -> None:
        """End the monitor if one is open."""
        if self._monitor is not None:
            await self._monitor.end(GRACE_S)
        await self.wait_for_monitor()

    async def _wait_until_closed(self, monitor: ForegroundProcess, on_closed: Callable[[], str]) -> None:
        code = await monitor.wait()
        self._monitor = None
        if self._dropped_lines:
            self._out(f"… {self._dropped_lines} earlier lines are in {short_path(self._log)}")
        for line in self._held_lines:
            self._out(line)
        self._held_lines.clear()
        if line := on_closed():
            end = f"the monitor failed ({describe_exit(code)})" if code else "monitor closed"
            self(f"{end}; {line}")


async def report_preparation(
    folder: RunFolder, out: Callable[[str], None], newest_start: Callable[[], object], earlier_text: str
) -> None:
    """Print the learner's preparation, as "STAGE: PROGRESS": a new stage immediately, and progress every 10 s.

    `newest_start` returns the newest RunStarted in the log. When it changes, the preparation is over. `earlier_text` is
    that of an earlier learner, which is not printed.
    """
    earlier_start, last_text = newest_start(), earlier_text
    next_line_at = 0.0
    while newest_start() is earlier_start:
        text, now = folder.preparation(), time.monotonic()
        is_new_stage = text.partition(":")[0] != last_text.partition(":")[0]
        if text not in ("", last_text) and (is_new_stage or now >= next_line_at):
            out(f"learner  {text}")
            last_text, next_line_at = text, now + PREPARATION_S
        await asyncio.sleep(POLL_S)


async def relay(log: Path, offset: int, ended: asyncio.Event) -> None:
    """Copy the file from `offset` to stdout until `ended` is set and everything has been copied."""
    while True:
        is_last = ended.is_set()
        if log.exists():
            with log.open("rb") as source:
                source.seek(offset)
                content = source.read()
            offset += len(content)
            if content:
                with contextlib.suppress(OSError):  # the terminal was closed
                    sys.stdout.write(content.decode(errors="replace"))
                    sys.stdout.flush()
        if is_last:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await ended.wait()
