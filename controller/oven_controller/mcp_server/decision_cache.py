"""The decisions of runs, read once while a log stays as it is: an agent lists them, and then asks about each."""

from __future__ import annotations

import os
import threading
from collections import OrderedDict
from collections.abc import Callable
from typing import Final, TypeAlias

from oven_core.protocol.events import Event
from oven_runs.access.local_run import LocalRun
from oven_runs.access.run_access import RunAccess
from oven_runs.log.explanation import Explanations

KEPT: Final = 2
"""Runs whose decisions are kept."""
MOST: Final = 1000
"""Decisions of a run that is kept: with votes and tallies of 18 agents each takes 31 KB."""

_Stamp: TypeAlias = tuple[str, int, int]


class DecisionCache:
    """Of runs that are over and whose folder is here; the others are read anew each time. Used from several threads."""

    def __init__(self) -> None:
        self._kept: OrderedDict[_Stamp, Explanations] = OrderedDict()
        self._lock = threading.Lock()

    async def read(self, access: RunAccess, hear: Callable[[Event], object]) -> Explanations:
        """The run's decisions, to be looked at only. `hear` is called with each event that is read, and may raise to
        end it. Raises what reading a log raises."""
        before = _stamp(access)
        with self._lock:
            if before is not None and before in self._kept:
                self._kept.move_to_end(before)
                return self._kept[before]
        seen = Explanations()
        async for event in access.events():
            seen.feed(event)
            hear(event)
        if before is not None and before == _stamp(access) and len(seen.by_id) <= MOST:
            with self._lock:
                self._kept[before] = seen
                while len(self._kept) > KEPT:
                    self._kept.popitem(last=False)
        return seen


def _stamp(access: RunAccess) -> _Stamp | None:
    """What a log that is over is known by, and what a change of it changes; None: it is not over, or not here."""
    if not isinstance(access, LocalRun) or access.up():
        return None
    try:
        found = os.stat(access.folder.export)
    except OSError:
        return None
    return str(access.folder.export), found.st_mtime_ns, found.st_size
