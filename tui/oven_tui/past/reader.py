"""The reader of a long log as the monitor has it: frames of the process that folds it, as they come."""

from __future__ import annotations

import asyncio
import contextlib
import pickle
import sys
from collections.abc import AsyncGenerator

from oven_runs.home.run_folder import RunFolder
from oven_tui.past.frames import LENGTH, Failed, Frame

LONG_BYTES = 4 << 20
"""Of a log that is read by its own process: shorter ones are folded within half a second."""


def is_long(folder: RunFolder) -> bool:
    """Whether the run has a log.jsonl that takes long to fold."""
    try:
        return folder.export.stat().st_size > LONG_BYTES
    except OSError:
        return False


async def frames(folder: RunFolder, *, growing: bool = False, checkpoints: int = 0) -> AsyncGenerator[Frame]:
    """Those of one reading, to its end. The process ends with the iteration."""
    command = [sys.executable, "-P", "-m", "oven_tui.past.process", str(folder.path)]
    command += ["--growing"] if growing else []
    command += ["--checkpoints", str(checkpoints)] if checkpoints else []
    process = await asyncio.create_subprocess_exec(
        *command, stdin=asyncio.subprocess.DEVNULL, stdout=asyncio.subprocess.PIPE, stderr=asyncio.subprocess.PIPE
    )
    assert process.stdout is not None and process.stderr is not None
    try:
        while True:
            head = await process.stdout.readexactly(LENGTH.size)
            frame = pickle.loads(await process.stdout.readexactly(*LENGTH.unpack(head)))
            yield frame
            await asyncio.sleep(0)
    except asyncio.IncompleteReadError:
        if code := await process.wait():
            said = (await process.stderr.read()).decode(errors="replace").splitlines()
            yield Failed(f"the process that reads it ended ({code}): {said[-1] if said else 'it said nothing'}")
    finally:
        with contextlib.suppress(ProcessLookupError):
            process.kill()
        await process.wait()
