"""The feed of one run's sampled completions: from the stack that is up, else from its store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from oven_core.protocol.completion_messages import StoredGroup
from oven_runs.access.completion_reader import followed, newest
from oven_runs.access.run_access import RunAccess

MOST = 64
"""Groups that are asked for at the beginning."""
LOOK_S = 1.0


async def sampled_groups(access: RunAccess) -> AsyncIterator[list[StoredGroup]]:
    """What is kept, and what comes, until cancelled: also when the stack comes back. Raises OvenError."""
    while True:
        if access.up():
            async for groups in followed(access, MOST, _untold):
                yield groups
        else:
            yield await newest(access, MOST)
        while not access.up():
            await asyncio.sleep(LOOK_S)


def _untold(_line: str) -> None:
    """The monitor has the terminal, and its header says how the connection is."""
