"""When a snapshot for rollback is due: often enough, at the same tick on every rank, and within its share of the time.

The time budget is a token bucket (RFC 2697's meter, with seconds for bytes). Seconds to spend accrue at `SHARE` of wall
time, and a snapshot is due when its expected cost is there. A snapshot that took longer than expected leaves a debt
that is paid off first. So over any run, snapshots take at most `SHARE` of the time, the initial credit, and one
misjudged snapshot.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from typing import Any

EVERY_TICKS = 5
"""The shortest distance between snapshots. If a snapshot costs more than its share of these steps, it is longer."""
LOOK_TICKS = 100
"""The longest distance between looks at the clock: the first step of a run says little about the others."""
SHARE = 0.02
"""Share of wall time for snapshots in memory, and for checkpoints that are taken for rollback."""
SAVED_SNAPSHOTS = 2.0
"""The budget saves up the cost of at most so many snapshots: an hour on hold does not bring a burst."""


class SnapshotTimeBudget:
    """The time that snapshots may cost. All times are in seconds, of one monotonic clock."""

    def __init__(self, now: float, *, expected: float = 0.0, credit: float = 0.0) -> None:
        """`expected`: the expected cost of the first snapshot. `credit`: seconds that may be spent at the start."""
        self.expected = expected
        self.spent = 0.0
        """Seconds that snapshots have taken so far, without those that the user asked for."""
        self.copies = 0
        """The number of those snapshots."""
        self._balance = self._credit = credit
        self._accrued_until = now

    def wait(self, now: float) -> float:
        """Return the seconds until a snapshot is due; 0 if it is."""
        self._accrue(now)
        return max(0.0, self.expected - self._balance) / SHARE

    def took(self, began: float, ended: float, *, own: bool = True) -> None:
        """Charge a snapshot. One that the user asked for (not `own`) is free, but the next is due a whole interval
        later."""
        self._accrue(ended)
        cost = max(0.0, ended - began)
        if own:
            self.spent += cost
            self._balance -= cost
            self.copies += 1
        else:
            self._balance = min(self._balance, 0.0)
        self.expected = max(cost, self.spent / self.copies if self.copies else 0.0)

    def _accrue(self, now: float) -> None:
        most = max(self._credit, self._balance, SAVED_SNAPSHOTS * self.expected)
        self._balance = min(most, self._balance + SHARE * max(0.0, now - self._accrued_until))
        self._accrued_until = max(self._accrued_until, now)


class SnapshotSchedule:
    """Decides in ticks when to look at the clock. All ranks look at the same ticks and use rank 0's clock; otherwise
    one rank could have a snapshot that another lacks."""

    def __init__(
        self,
        budget: SnapshotTimeBudget,
        clock: Callable[[], float] = time.monotonic,
        share: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        """`share` returns rank 0's argument on every rank (oven_learner.ranks)."""
        self.budget, self.clock = budget, clock
        self.share = share
        self._began: tuple[int, float] | None = None
        self._next_look = 0

    def due(self, tick: int) -> bool:
        """Whether a snapshot is due now."""
        if self._began is None:
            self._began = (tick, self.clock())
        if tick < self._next_look:
            return False
        wait_s = self.budget.wait(self.clock())
        ticks_passed, seconds_passed = tick - self._began[0], self.clock() - self._began[1]
        ticks = 1
        if ticks_passed and seconds_passed:
            ticks = math.ceil(min(LOOK_TICKS, wait_s / (seconds_passed / ticks_passed)))
        due, self._next_look = self.share((wait_s == 0, tick + max(1 if wait_s else EVERY_TICKS, ticks)))
        return bool(due)

    def note_snapshot(self, tick: int) -> None:
        """Note that a snapshot was taken."""
        self._next_look = max(self._next_look, tick + EVERY_TICKS)
