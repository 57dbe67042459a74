"""The feed of one run's sampled completions: from the stack that is up, else from its store."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator

from oven_controller.protocol.completion_messages import StoredGroup
from oven_controller.runs.completion_reader import followed, local_source, newest_of_store
from oven_controller.runs.folder import RunFolder

MOST = 64
"""Groups that are asked for at the beginning."""
LOOK_S = 1.0


async def sampled_groups(folder: RunFolder) -> AsyncIterator[list[StoredGroup]]:
    """What is kept, and what comes, until cancelled: also when the stack comes back. Raises OvenError."""
    while True:
        if folder.locked():
            async for groups in followed(local_source(folder), MOST):
                yield groups
        else:
            yield await newest_of_store(folder, MOST)
        while not folder.locked():
            await asyncio.sleep(LOOK_S)
