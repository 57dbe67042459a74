"""Snapshots of a run in memory for rollback, and their schedule.

Older snapshots are further apart, and the first one is always kept. All ranks take them at the same ticks. The time
budget is a token bucket (the meter of RFC 2697, with seconds instead of bytes). Its balance grows by MAX_TIME_SHARE of
wall time, and a snapshot is due when the balance covers its expected cost. If it takes longer than expected, the
balance becomes negative. Over any run, snapshots therefore take at most MAX_TIME_SHARE of the time, plus the initial
credit and the excess of one snapshot.
"""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from typing import Any

from oven_core.errors import reason
from oven_learner.ranks import Ranks
from oven_learner.rollback.rollback_protocol import Checkpoints, Snapshot

log = logging.getLogger("oven.learner")

MAX_LEVELS, SNAPSHOTS_PER_LEVEL = 6, 3
"""Maximum number of levels, and number of snapshots per level. Level k keeps the newest three of every 2ᵏth snapshot.
With a snapshot every INTERVAL_TICKS, a rollback by up to 300 ticks goes back at most 1.8 times as far as requested."""
CREDIT_S = 0.1
"""Seconds that may be spent at the start without waiting, so that a run that fails early can be rolled back."""
INTERVAL_TICKS = 5
"""Minimum ticks between snapshots. If this would exceed MAX_TIME_SHARE, the snapshots are further apart."""
TOLERANCE_TICKS = 2 * INTERVAL_TICKS
"""Ticks by which a rollback may exceed the maximum distance."""
MAX_CLOCK_TICKS = 100
"""Maximum ticks between two readings of the clock, because the pace of the first steps may not last."""
MAX_TIME_SHARE = 0.02
"""Maximum share of wall time for snapshots in memory, and for scheduled checkpoints."""
MAX_SAVED_SNAPSHOTS = 2.0
"""Maximum balance of the budget, in snapshots. It prevents a burst of snapshots after the run was held."""


def snapshot_count(levels: int = MAX_LEVELS) -> int:
    """Return the maximum number of snapshots: the first one, the state before the last rollback, and those of the
    levels. Every level above the lowest adds at most two."""
    return 2 + SNAPSHOTS_PER_LEVEL + 2 * (levels - 1)


class Snapshots:
    """Takes snapshots at the start of a run and then every few ticks, as described above, and restores them."""

    can_undo = True

    def __init__(
        self,
        take: Callable[[], tuple[int, Any]],
        restore: Callable[[Any], None],
        *,
        credit: float = CREDIT_S,
        clock: Callable[[], float] = time.monotonic,
        levels: int = MAX_LEVELS,
    ) -> None:
        """`take` returns (step, state) with copies that training cannot change, and `restore` restores a state.
        `credit` is in seconds. With infinite credit, a snapshot is taken every INTERVAL_TICKS at any cost."""
        self._take_state, self._restore_state = take, restore
        self._levels, self._ranks = levels, Ranks()
        self.disk: Checkpoints | None = None
        """Checkpoints for a process that replaces a killed one, if there are any."""
        self.budget = SnapshotTimeBudget(clock(), credit_s=credit)
        self._schedule = SnapshotSchedule(self.budget, clock)
        self._first: Snapshot | None = None
        self._recent: dict[int, Snapshot] = {}
        """Number → snapshot, in the order in which they were taken, without the first one."""
        self._before_rollback: Snapshot | None = None
        self._count = 0

    def use_ranks(self, ranks: Ranks) -> None:
        """Take snapshots at the same ticks on every rank, by rank 0's clock."""
        self._ranks, self._schedule.broadcast = ranks, ranks.broadcast

    def take_if_due(self, tick: int) -> None:
        if self._first is None or self._schedule.is_due(tick):
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
        self._schedule.on_snapshot(tick)
        return snapshot.step

    def _copy(self, tick: int) -> Snapshot:
        """Copy the current state. Raises RuntimeError on every rank if this fails on one."""
        began = self._schedule.clock()
        step, state = self._ranks.call_on_all(self._take_state)
        self.budget.charge(began, self._schedule.clock())
        return Snapshot(tick, step, state)

    def _add(self, snapshot: Snapshot) -> None:
        """Add a snapshot, and drop those that no level needs."""
        self._count += 1
        snapshots = {**self._recent, self._count: snapshot}
        needed_numbers: set[int] = set()
        for level in range(self._levels):
            level_numbers = [number for number in snapshots if number % 2**level == 0]
            needed_numbers.update(level_numbers[-SNAPSHOTS_PER_LEVEL:])
        self._recent = {number: entry for number, entry in snapshots.items() if number in needed_numbers}

    def ensure(self, tick: int) -> None:
        self.take(tick)

    def distance_problem(self, tick: int, now: int, *, exact: bool) -> str:
        """Return why the rollback would go back too far. The limit is the requested distance for an operator, twice
        that for an agent, plus TOLERANCE_TICKS ticks."""
        ticks = [snapshot.tick for snapshot in self._all_snapshots()]
        target = max((snapshot_tick for snapshot_tick in ticks if snapshot_tick <= tick), default=tick)
        max_distance = (now - tick) * (1 if exact else 2) + TOLERANCE_TICKS
        if tick > now or now - target <= max_distance:
            return ""
        return (
            f"the newest snapshot from tick {tick} or before is from tick {target}, {now - target} ticks back; this "
            f"request may go back at most {max_distance}; choose the tick of a snapshot: {', '.join(map(str, ticks))}"
        )

    def restore(self, tick: int, now: int) -> Snapshot:
        """Restore the newest snapshot taken at or before `tick`, and drop later ones. A copy of the current state is
        kept until the next rollback. Raises LookupError if no snapshot is that old."""
        candidates = [snapshot for snapshot in self._all_snapshots() if snapshot.tick <= tick]
        if not candidates:
            raise LookupError(
                f"there is no snapshot from tick {tick} or before; the oldest is from tick "
                f"{self._first.tick if self._first else '–'}"
            )
        self._before_rollback = self._copy_for_undo(now)
        snapshot = self._restore_and_drop_later(candidates[-1])
        if self.disk is not None:
            self.disk.abandon(snapshot.tick, now)
        return snapshot

    def _all_snapshots(self) -> list[Snapshot]:
        return [*([self._first] if self._first else []), *self._recent.values()]

    def _copy_for_undo(self, now: int) -> Snapshot | None:
        """Copy the current state. If this fails, the rollback continues but cannot be undone."""
        try:
            return self._copy(now)
        except Exception as error:
            log.warning("this rollback cannot be undone, because the state could not be copied: %s", reason(error))
            return None

    def undo(self) -> Snapshot:
        """Restore the state before the last rollback, and drop later snapshots. Raises LookupError if there is none."""
        if self._before_rollback is None:
            raise LookupError("there is no rollback to undo, or the state before it could not be copied")
        snapshot, self._before_rollback = self._before_rollback, None
        self._restore_and_drop_later(snapshot)
        self._add(snapshot)
        return snapshot

    def _restore_and_drop_later(self, snapshot: Snapshot) -> Snapshot:
        self._restore_state(snapshot.state)
        self._recent = {number: entry for number, entry in self._recent.items() if entry.tick <= snapshot.tick}
        return snapshot


class SnapshotTimeBudget:
    """A time budget for snapshots. All times are in seconds on one monotonic clock."""

    def __init__(self, now: float, *, expected_s: float = 0.0, credit_s: float = 0.0) -> None:
        """`expected_s` is the expected cost of the first snapshot. `credit_s` may be spent at the start."""
        self.expected_s = expected_s
        self.spent_s = 0.0
        """Seconds spent on scheduled snapshots so far."""
        self.count = 0
        """Number of scheduled snapshots so far."""
        self._balance_s = self._credit_s = credit_s
        self._accrued_until = now

    def seconds_until_due(self, now: float) -> float:
        """Return the seconds until a snapshot is due, or 0 if it is due."""
        self._accrue(now)
        return max(0.0, self.expected_s - self._balance_s) / MAX_TIME_SHARE

    def charge(self, began_at: float, ended_at: float, *, is_scheduled: bool = True) -> None:
        """Charge a snapshot. A requested one is free, but the next scheduled one is due a full interval later."""
        self._accrue(ended_at)
        cost = max(0.0, ended_at - began_at)
        if is_scheduled:
            self.spent_s += cost
            self._balance_s -= cost
            self.count += 1
        else:
            self._balance_s = min(self._balance_s, 0.0)
        self.expected_s = max(cost, self.spent_s / self.count if self.count else 0.0)

    def _accrue(self, now: float) -> None:
        """Increase the balance for the time until `now`. The initial credit may exceed the usual maximum."""
        max_balance = max(self._credit_s, self._balance_s, MAX_SAVED_SNAPSHOTS * self.expected_s)
        self._balance_s = min(max_balance, self._balance_s + MAX_TIME_SHARE * max(0.0, now - self._accrued_until))
        self._accrued_until = max(self._accrued_until, now)


class SnapshotSchedule:
    """Decides at which ticks to read the clock and to take snapshots. All ranks use rank 0's clock at the same ticks.
    Otherwise, a rank could lack a snapshot that another one has."""

    def __init__(
        self,
        budget: SnapshotTimeBudget,
        clock: Callable[[], float] = time.monotonic,
        broadcast: Callable[[Any], Any] = lambda value: value,
    ) -> None:
        """`broadcast` returns rank 0's argument on every rank (oven_learner.ranks)."""
        self.budget, self.clock = budget, clock
        self.broadcast = broadcast
        self._start: tuple[int, float] | None = None
        """Tick and time of the first call."""
        self._next_tick = 0
        """Tick at which to read the clock again."""

    def is_due(self, tick: int) -> bool:
        """Whether to take a snapshot at this tick."""
        if self._start is None:
            self._start = (tick, self.clock())
        if tick < self._next_tick:
            return False
        wait_s = self.budget.seconds_until_due(self.clock())
        start_tick, started_at = self._start
        ticks_passed, seconds_passed = tick - start_tick, self.clock() - started_at
        wait_ticks = 1  # while the pace is unknown
        if ticks_passed and seconds_passed:
            seconds_per_tick = seconds_passed / ticks_passed
            wait_ticks = math.ceil(min(MAX_CLOCK_TICKS, wait_s / seconds_per_tick))
        min_ticks = 1 if wait_s else INTERVAL_TICKS
        is_due, self._next_tick = self.broadcast((wait_s == 0, tick + max(min_ticks, wait_ticks)))
        return bool(is_due)

    def on_snapshot(self, tick: int) -> None:
        """Wait at least INTERVAL_TICKS until the next snapshot."""
        self._next_tick = max(self._next_tick, tick + INTERVAL_TICKS)
