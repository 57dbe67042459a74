"""When a copy for rollback is due: often enough, on every rank at the same tick, and within its share of the time."""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

SHARE = 0.02
"""Of wall time, for snapshots in memory and for the checkpoints that are taken for rollback alike."""
KEPT_COPIES = 2.0
"""No more than so many copies' worth is saved up: an hour on hold does not bring a burst."""


class SnapshotTimeBudget:
    """Times are of one monotonic clock, in seconds."""

    def __init__(self, now: float, *, expected: float = 0.0, credit: float = 0.0) -> None:
        """`expected`: what the first copy will cost, as far as one knows. `credit`: seconds in hand at the start."""
        self.expected = expected
        self.spent = 0.0
        """Seconds that copies have taken so far, those apart that the user asked for."""
        self._in_hand = self._credit = credit
        self._at = now
        self.copies = 0
        """How many those were."""

    def wait(self, now: float) -> float:
        """Seconds until a copy is due; 0 when it is."""
        self._accrue(now)
        return max(0.0, self.expected - self._in_hand) / SHARE

    def took(self, began: float, ended: float, *, own: bool = True) -> None:
        """A copy was taken. One that the user's settings asked for is not charged, but it is as good as ours: the next
        is due a whole interval later."""
        self._accrue(ended)
        cost = max(0.0, ended - began)
        if own:
            self.spent += cost
            self._in_hand -= cost
            self.copies += 1
        else:
            self._in_hand = min(self._in_hand, 0.0)
        self.expected = max(cost, self.spent / self.copies if self.copies else 0.0)

    def _accrue(self, now: float) -> None:
        most = max(self._credit, self._in_hand, KEPT_COPIES * self.expected)
        self._in_hand = min(most, self._in_hand + SHARE * max(0.0, now - self._at))
        self._at = max(self._at, now)


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
