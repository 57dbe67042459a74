"""Reads the sampled completions of one run, from the running stack or, if it is down, from its store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from oven_core.protocol.completion_messages import StoredGroup
from oven_runs.access.completion_reader import follow_groups, newest_groups
from oven_runs.access.run_access import RunAccess

INITIAL_GROUPS = 64
"""Number of groups to request at the start."""
POLL_S = 1.0
"""Seconds between checks for a restart of the stack."""


async def sampled_groups(access: RunAccess) -> AsyncIterator[list[StoredGroup]]:
    """Yield stored and new groups until cancelled, even across restarts of the stack. Raises OvenError."""
    while True:
        if access.is_up():
            async for groups in follow_groups(access, INITIAL_GROUPS, lambda _line: None):
                yield groups
        else:
            yield await newest_groups(access, INITIAL_GROUPS)
        while not access.is_up():
            await asyncio.sleep(POLL_S)
