"""Snapshots of a run in memory for rollback, and their schedule.

Older snapshots are further apart, and the first one is kept. Every rank takes them at the same ticks and within their
share of the time. The time budget is a token bucket (RFC 2697's meter, with seconds for bytes). Seconds to spend accrue
at `SHARE` of wall time, and a snapshot is due when its expected cost is there. A snapshot that took longer than
expected leaves a debt that is paid off first. So over any run, snapshots take at most `SHARE` of the time, the initial
credit, and one misjudged snapshot.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any

from oven_core.errors import reason
from oven_learner.rollback.rollback_protocol import Checkpoints, Snapshot

log = logging.getLogger("oven.learner")

LEVELS, EACH = 6, 3
"""The newest three of every 1st, 2nd, 4th … 32nd snapshot are kept. So for 300 ticks, at EVERY_TICKS, there is always
one that is at most 1.8 times as far back as requested."""
KEPT = EACH + 2 * (LEVELS - 1)
"""The most snapshots that are kept, in addition to the first and to the state before the last rollback."""
CREDIT_S = 0.1
"""Spent at the start without waiting, so that a run that fails at once has something to go back to."""
EVERY_TICKS = 5
"""The shortest distance between snapshots. If a snapshot costs more than its share of these steps, it is longer."""
TOLERANCE = 2 * EVERY_TICKS
"""Ticks that a rollback may go back beyond its limit."""
LOOK_TICKS = 100
"""Maximum ticks between readings of the clock, because the first step of a run says little about the others."""
SHARE = 0.02
"""Share of wall time for snapshots in memory, and for checkpoints that are taken for rollback."""
SAVED_SNAPSHOTS = 2.0
"""Maximum savings of the budget, in snapshots, so that an hour on hold is not followed by a burst."""


class Snapshots:
    """Takes a snapshot at the start and then every few ticks; the first is never dropped. All together cost at most
    `SHARE` of wall time, and CREDIT_S."""

    undoes = True

    def __init__(
        self,
        take: Callable[[], tuple[int, Any]],
        restore: Callable[[Any], None],
        *,
        credit: float = CREDIT_S,
        clock: Callable[[], float] = time.monotonic,
        share: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        """`take` returns (step, state) with copies that training cannot change, and `restore` restores a state.
        `credit`: seconds; with infinite credit a snapshot is taken every EVERY_TICKS at any cost. `share` returns rank
        0's argument on every rank."""
        self._take_state, self._restore_state = take, restore
        self.disk: Checkpoints | None = None
        """Checkpoints for the process that replaces a killed one, if they are taken as well."""
        self.budget = SnapshotTimeBudget(clock(), credit=credit)
        self._schedule = SnapshotSchedule(self.budget, clock, share)
        self._first: Snapshot | None = None
        self._recent: dict[int, Snapshot] = {}
        """Recent snapshots by number, in order."""
        self._before_rollback: Snapshot | None = None
        self._count = 0

    def use_clock_of_leader(self, share: Callable[[Any], Any]) -> None:
        """Use rank 0's clock on every rank from now on. `share` returns rank 0's argument on every rank."""
        self._schedule.share = share

    def take_if_due(self, tick: int) -> None:
        if self._first is None or self._schedule.due(tick):
            self.take(tick)
        if self.disk is not None:
            self.disk.take_if_due(tick)

    def take(self, tick: int) -> int:
        """Take a snapshot, and return its step."""
        snapshot = self._copy(tick)
        if self._first is None:
            self._first = snapshot
        else:
            self._add(snapshot)
        self._schedule.note_snapshot(tick)
        return snapshot.step

    def _copy(self, tick: int) -> Snapshot:
        began = self._schedule.clock()
        step, state = self._take_state()
        self.budget.took(began, self._schedule.clock())
        return Snapshot(tick, step, state)

    def _add(self, snapshot: Snapshot) -> None:
        self._count += 1
        numbered = {**self._recent, self._count: snapshot}
        retained = {n for level in range(LEVELS) for n in [n for n in numbered if n % 2**level == 0][-EACH:]}
        self._recent = {n: entry for n, entry in numbered.items() if n in retained}

    def ensure(self, tick: int) -> None:
        self.take(tick)

    def too_far(self, tick: int, now: int, *, exact: bool) -> str:
        """The limit is the distance for an operator and twice that for an agent, plus TOLERANCE ticks."""
        ticks = [snapshot.tick for snapshot in self._all()]
        target = max((older for older in ticks if older <= tick), default=tick)
        most = (now - tick) * (1 if exact else 2) + TOLERANCE
        if tick > now or now - target <= most:
            return ""
        return (
            f"the newest snapshot from tick {tick} or before is from tick {target}, {now - target} ticks back; this "
            f"request may go back at most {most}; give the tick of a snapshot: {', '.join(map(str, ticks))}"
        )

    def restore(self, tick: int, now: int) -> Snapshot:
        """Restore the newest snapshot taken at or before `tick`, and drop later ones with the steps they stand for.

        A copy of the present state is kept until the next rollback. Raises LookupError if no snapshot is that old.
        """
        old_enough = [snapshot for snapshot in self._all() if snapshot.tick <= tick]
        if not old_enough:
            raise LookupError(
                f"no snapshot from tick {tick} or before; the oldest is from tick "
                f"{self._first.tick if self._first else '–'}"
            )
        self._before_rollback = self._copy_for_undo(now)
        snapshot = self._go_to(old_enough[-1])
        if self.disk is not None:
            self.disk.abandon(snapshot.tick, now)
        return snapshot

    def _all(self) -> list[Snapshot]:
        return [*([self._first] if self._first else []), *self._recent.values()]

    def _copy_for_undo(self, now: int) -> Snapshot | None:
        """Copy the present state. If that fails the rollback happens all the same, and cannot be undone."""
        try:
            return self._copy(now)
        except Exception as error:
            log.warning("this rollback cannot be taken back: no copy (%s)", reason(error))
            return None

    def undo(self) -> Snapshot:
        """Restore the state before the last rollback, once, and drop snapshots taken since. Raises LookupError."""
        if self._before_rollback is None:
            raise LookupError("nothing is kept: no rollback since the start, or it was taken back, or not copied")
        snapshot, self._before_rollback = self._before_rollback, None
        self._go_to(snapshot)
        self._add(snapshot)
        return snapshot

    def _go_to(self, snapshot: Snapshot) -> Snapshot:
        self._restore_state(snapshot.state)
        self._recent = {n: entry for n, entry in self._recent.items() if entry.tick <= snapshot.tick}
        return snapshot


class SnapshotTimeBudget:
    """The time budget for snapshots. All times are in seconds on one monotonic clock."""

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
        self._next_look = max(self._next_look, tick + EVERY_TICKS)
