"""Follower of a log file that grows: a script's output on the terminal although it goes to a file."""

from __future__ import annotations

import asyncio
import contextlib
import sys
from pathlib import Path

POLL_S = 0.1


async def relay(log: Path, offset: int, ended: asyncio.Event) -> None:
    """Copy what is appended after `offset` to stdout until `ended` is set and all is copied."""
    while True:
        last = ended.is_set()
        if log.exists():
            with log.open("rb") as source:
                source.seek(offset)
                new = source.read()
            offset += len(new)
            if new:
                with contextlib.suppress(OSError):  # the terminal was closed
                    sys.stdout.write(new.decode(errors="replace"))
                    sys.stdout.flush()
        if last:
            return
        with contextlib.suppress(TimeoutError):
            async with asyncio.timeout(POLL_S):
                await ended.wait()
