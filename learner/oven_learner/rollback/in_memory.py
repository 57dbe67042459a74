"""Snapshots of a run in memory, the older the further apart, and the first: what a rollback goes back to."""

from __future__ import annotations

import logging
import time
from collections.abc import Callable
from typing import Any

from oven_core.errors import reason
from oven_learner.rollback.kept_state import Snapshot
from oven_learner.rollback.snapshot_schedule import Schedule, SnapshotTimeBudget

log = logging.getLogger("oven.learner")

LEVELS, EACH = 6, 3
"""Of every 1st, 2nd, 4th … 32nd that was taken the newest three are kept: for up to 300 ticks, at EVERY_TICKS, there is
one no further back than 1.8 times the way that was asked for."""
KEPT = EACH + 2 * (LEVELS - 1)
"""At most, beside the first and what the last rollback left."""
CREDIT_S = 0.1
"""Spent at the beginning without waiting: a run that goes wrong at once has something to go back to."""


class Snapshots:
    """Takes one at the start and then every few ticks; the first is never dropped. All together cost at most
    pacing.SHARE of wall time, and CREDIT_S.

    `take` returns (step, state) with copies that training cannot touch; `restore` puts a state back.
    """

    undoes = True

    def __init__(
        self,
        take: Callable[[], tuple[int, Any]],
        restore: Callable[[Any], None],
        *,
        credit: float = CREDIT_S,
        clock: Callable[[], float] = time.monotonic,
        share: Callable[[Any], Any] = lambda said: said,
    ) -> None:
        """`credit`: seconds; without end they are taken every EVERY_TICKS, whatever they cost. `share` returns rank 0's
        argument on every rank."""
        self._state, self._put = take, restore
        self._schedule = Schedule(SnapshotTimeBudget(clock(), credit=credit), clock, share)
        self._first: Snapshot | None = None
        self._recent: dict[int, Snapshot] = {}
        """By number, in order."""
        self._left: Snapshot | None = None
        """What the last rollback left."""
        self._count = 0

    def use_clock_of_leader(self, share: Callable[[Any], Any]) -> None:
        """From now on rank 0's clock says on every rank when one is due."""
        self._schedule.share = share

    @property
    def spent_s(self) -> float:
        """What all of them have cost so far."""
        return self._schedule.pacing.spent

    @property
    def copies(self) -> int:
        """How many those were."""
        return self._schedule.pacing.copies

    def take_if_due(self, tick: int) -> None:
        if self._first is None or self._schedule.due(tick):
            self.take(tick)

    def take(self, tick: int) -> int:
        """Take one, and return its step."""
        snapshot = self._copy(tick)
        if self._first is None:
            self._first = snapshot
        else:
            self._keep(snapshot)
        self._schedule.taken(tick)
        return snapshot.step

    def _copy(self, tick: int) -> Snapshot:
        began = self._schedule.clock()
        step, state = self._state()
        self._schedule.pacing.took(began, self._schedule.clock())
        return Snapshot(tick, step, state)

    def _keep(self, snapshot: Snapshot) -> None:
        self._count += 1
        counted = {**self._recent, self._count: snapshot}
        wanted = {n for level in range(LEVELS) for n in [n for n in counted if n % 2**level == 0][-EACH:]}
        self._recent = {n: one for n, one in counted.items() if n in wanted}

    def ensure(self, tick: int) -> None:
        self.take(tick)

    def restore(self, tick: int, now: int) -> Snapshot:
        """Restore the newest snapshot taken at or before `tick`; later ones are dropped with the steps they stand for,
        but for a copy of what is left here, which stays until the next rollback.

        Raises LookupError when none is that old.
        """
        fitting = [s for s in ([self._first] if self._first else []) + [*self._recent.values()] if s.tick <= tick]
        if not fitting:
            raise LookupError(
                f"no snapshot from tick {tick} or before; the oldest is from tick "
                f"{self._first.tick if self._first else '–'}"
            )
        self._left = self._leaving(now)
        return self._go_to(fitting[-1])

    def _leaving(self, now: int) -> Snapshot | None:
        """What the rollback is about to leave; it goes ahead without a way forward again, too."""
        try:
            return self._copy(now)
        except Exception as error:
            log.warning("this rollback cannot be taken back: no copy (%s)", reason(error))
            return None

    def undo(self) -> Snapshot:
        """Restore what the last rollback left, once; what was taken since is dropped. Raises LookupError."""
        if self._left is None:
            raise LookupError("nothing is kept: no rollback since the start, or it was taken back, or not copied")
        left, self._left = self._left, None
        self._go_to(left)
        self._keep(left)
        return left

    def _go_to(self, snapshot: Snapshot) -> Snapshot:
        self._put(snapshot.state)
        self._recent = {n: one for n, one in self._recent.items() if one.tick <= snapshot.tick}
        return snapshot
