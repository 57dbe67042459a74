"""The feed of one run's sampled completions, from the running stack or otherwise from its store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from oven_core.protocol.completion_messages import StoredGroup
from oven_runs.access.completion_reader import follow_groups, newest_groups
from oven_runs.access.run_access import RunAccess

MOST = 64
"""Groups to request at the start."""
LOOK_S = 1.0


async def sampled_groups(access: RunAccess) -> AsyncIterator[list[StoredGroup]]:
    """Yield stored and new groups until cancelled, also after the stack comes back. Raises OvenError."""
    while True:
        if access.is_up():
            async for groups in follow_groups(access, MOST, lambda _line: None):
                yield groups
        else:
            yield await newest_groups(access, MOST)
        while not access.is_up():
            await asyncio.sleep(LOOK_S)
