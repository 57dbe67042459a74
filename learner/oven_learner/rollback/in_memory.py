"""Snapshots of a run in memory: the older, the further apart, and always the first one."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from oven_core.errors import reason
from oven_learner.rollback.rollback_protocol import Snapshot
from oven_learner.rollback.snapshot_schedule import SnapshotSchedule, SnapshotTimeBudget

log = logging.getLogger("oven.learner")

LEVELS, EACH = 6, 3
"""Of every 1st, 2nd, 4th … 32nd snapshot the newest three are kept. So for 300 ticks, at EVERY_TICKS, there is always
one that is at most 1.8 times as far back as requested."""
KEPT = EACH + 2 * (LEVELS - 1)
"""The most snapshots that are kept, in addition to the first and to the state before the last rollback."""
CREDIT_S = 0.1
"""Spent at the start without waiting, so that a run that fails at once has something to go back to."""


class Snapshots:
    """Takes a snapshot at the start and then every few ticks; the first is never dropped. All together cost at most
    `snapshot_schedule.SHARE` of wall time, and CREDIT_S."""

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
        self._schedule = SnapshotSchedule(SnapshotTimeBudget(clock(), credit=credit), clock, share)
        self._first: Snapshot | None = None
        self._recent: dict[int, Snapshot] = {}
        """By number, in order."""
        self._before_rollback: Snapshot | None = None
        self._count = 0

    def use_clock_of_leader(self, share: Callable[[Any], Any]) -> None:
        """Use rank 0's clock on every rank from now on. `share` returns rank 0's argument on every rank."""
        self._schedule.share = share

    @property
    def spent_s(self) -> float:
        """The time that all snapshots have taken so far."""
        return self._schedule.budget.spent

    @property
    def copies(self) -> int:
        """The number of snapshots so far."""
        return self._schedule.budget.copies

    def take_if_due(self, tick: int) -> None:
        if self._first is None or self._schedule.due(tick):
            self.take(tick)

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
        self._schedule.budget.took(began, self._schedule.clock())
        return Snapshot(tick, step, state)

    def _add(self, snapshot: Snapshot) -> None:
        self._count += 1
        numbered = {**self._recent, self._count: snapshot}
        retained = {n for level in range(LEVELS) for n in [n for n in numbered if n % 2**level == 0][-EACH:]}
        self._recent = {n: entry for n, entry in numbered.items() if n in retained}

    def ensure(self, tick: int) -> None:
        self.take(tick)

    def restore(self, tick: int, now: int) -> Snapshot:
        """Restore the newest snapshot taken at or before `tick`, and drop later ones with the steps they stand for.

        A copy of the present state is kept until the next rollback. Raises LookupError if no snapshot is that old.
        """
        candidates = [*([self._first] if self._first else []), *self._recent.values()]
        old_enough = [snapshot for snapshot in candidates if snapshot.tick <= tick]
        if not old_enough:
            raise LookupError(
                f"no snapshot from tick {tick} or before; the oldest is from tick "
                f"{self._first.tick if self._first else '–'}"
            )
        self._before_rollback = self._copy_for_undo(now)
        return self._go_to(old_enough[-1])

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
