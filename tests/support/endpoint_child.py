"""An endpoint in its own process, so that its work is not on the measured one's clock: it prints its address, and
serves until its standard input ends."""

from __future__ import annotations

import asyncio
import subprocess
import sys
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager, contextmanager

from oven_core.cancellation import call_at_end
from oven_core.errors import ProcessError
from oven_runs.process.child import end_with_input


@asynccontextmanager
async def running_child(module: str, *arguments: str) -> AsyncIterator[str]:
    """The address that `python -m module` prints, until the context ends. Raises ProcessError where it prints none."""
    process = await asyncio.create_subprocess_exec(
        *_command(module, *arguments), stdin=asyncio.subprocess.PIPE, stdout=asyncio.subprocess.PIPE
    )
    assert process.stdin is not None and process.stdout is not None
    try:
        url = (await process.stdout.readline()).decode().strip()
        if not url:
            raise ProcessError(f"{module} did not start; it ended with {await process.wait()}")
        yield url
    finally:
        process.stdin.close()
        await process.wait()


@contextmanager
def running_child_beside(module: str, *arguments: str) -> Iterator[str]:
    """The same for a caller without an event loop."""
    command = _command(module, *arguments)
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=subprocess.PIPE, text=True) as process:
        assert process.stdin is not None and process.stdout is not None
        try:
            url = process.stdout.readline().strip()
            if not url:
                raise ProcessError(f"{module} did not start; it ended with {process.wait()}")
            yield url
        finally:
            process.stdin.close()


def told_to_end() -> asyncio.Event:
    """In the child: set when its standard input ends, or a signal asks it to end."""
    stop = asyncio.Event()
    call_at_end(stop.set)
    end_with_input()
    return stop


def _command(module: str, *arguments: str) -> tuple[str, ...]:
    return (sys.executable, "-P", "-m", module, *arguments)
