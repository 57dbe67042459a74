"""`log --completions`: prompts, completions and scores that were sampled, which are in no log."""

from __future__ import annotations

import contextlib
import json
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from oven_core.protocol.completion_messages import StoredGroup
    from oven_runs.access.run_access import RunAccess

LAST = 10
"""Groups that are printed unless more are asked for: some screenfuls."""


async def print_completions(access: RunAccess, *, last: int, as_json: bool, follow: bool) -> None:
    """The newest groups, and with `follow` those that come until the stack is down. Raises OvenError."""
    from oven_runs.access.completion_reader import followed, newest

    if not follow or not access.up():
        _show(await newest(access, last), as_json)
        return
    async with contextlib.aclosing(followed(access, last)) as batches:
        async for groups in batches:
            _show(groups, as_json)


def _show(groups: list[StoredGroup], as_json: bool) -> None:
    from oven_core.terminal_text import say
    from oven_runs.log.sampled_text import group_lines

    for group in groups:
        if as_json:  # ASCII, since texts may hold what would steer a terminal
            print(json.dumps(json.loads(group.model_dump_json())), flush=True)
        else:
            say(*group_lines(group), "", flush=True)
