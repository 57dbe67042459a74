"""Follow the log of a run on this machine from its first event, without burdening the mesh with the part on disk."""

from __future__ import annotations

import asyncio
import logging
from collections.abc import AsyncGenerator, Callable
from typing import Final

from oven_core.errors import ConfigError
from oven_core.protocol.events import Event
from oven_runs.access.local_run import LocalRun
from oven_runs.access.log_sources import LogFile

log = logging.getLogger("oven.export")

BATCH: Final = 200
"""Number of events after which other tasks run, for example the handling of a signal."""


async def follow_log(access: LocalRun, on_poll: Callable[[], object]) -> AsyncGenerator[Event]:
    """Yield the run's events from the first one, verified, until the stack is down. While it is up, the events come
    from log.jsonl, and those that the file does not have yet from the mesh. `on_poll` is called when all available
    events have been read, at least every second. Raises RefusedError and ConfigError."""
    keyring, file = access.keyring(), LogFile(access.folder, growing=True)
    if access.is_up() and access.folder.export.exists():
        try:
            for raw in file:
                yield keyring.verify(raw)
                if file.seq % BATCH == 0:
                    await asyncio.sleep(0)
        except ConfigError as error:  # for example after a full disk
            log.warning("%s; reading on from the mesh", error)
    async for event in access.follow(log.info, on_poll, after=file.seq, keyring=keyring):
        yield event
