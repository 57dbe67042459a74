"""When a copy for rollback is due: often enough, on every rank at the same tick, and within its share of the time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

from oven_learner.rollback.snapshot_time_budget import SnapshotTimeBudget

EVERY_TICKS = 5
"""At most; where a copy costs more than its share of so many steps, they lie further apart."""
LOOK_TICKS = 100
"""And at least so often it is looked whether one is due: the first step of a run says little of the others."""


class Schedule:
    """When it is looked at the clock whether a copy is due, in ticks: all ranks look at the same ones, and rank 0's
    clock goes, or one would have a copy that another lacks."""

    def __init__(
        self,
        pacing: SnapshotTimeBudget,
        clock: Callable[[], float] = time.monotonic,
        share: Callable[[Any], Any] = lambda said: said,
    ) -> None:
        """`share` returns rank 0's argument on every rank (oven_learner.ranks)."""
        self.pacing, self.clock = pacing, clock
        self.share = share
        self._began: tuple[int, float] | None = None
        self._next = 0

    def due(self, tick: int) -> bool:
        """Whether a copy is due now."""
        if self._began is None:
            self._began = (tick, self.clock())
        if tick < self._next:
            return False
        wait_s = self.pacing.wait(self.clock())
        passed, passed_s = tick - self._began[0], self.clock() - self._began[1]
        ticks = math.ceil(min(LOOK_TICKS, wait_s / (passed_s / passed))) if passed and passed_s else 1
        due, self._next = self.share((wait_s == 0, tick + max(1 if wait_s else EVERY_TICKS, ticks)))
        return bool(due)

    def taken(self, tick: int) -> None:
        """One was taken out of turn."""
        self._next = max(self._next, tick + EVERY_TICKS)
