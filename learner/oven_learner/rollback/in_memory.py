"""Snapshots of a run in memory, the older the further apart, and the first: what a rollback goes back to."""

from __future__ import annotations

import logging
import math
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, Protocol

from oven_controller.errors import reason
from oven_learner.rollback.time_budget import Pacing

log = logging.getLogger("oven.learner")

LEVELS, EACH = 6, 3
"""Of every 1st, 2nd, 4th … 32nd that was taken the newest three are kept: for up to 300 ticks, at EVERY_TICKS, there is
one no further back than 1.8 times the way that was asked for."""
KEPT = EACH + 2 * (LEVELS - 1)
"""At most, beside the first and what the last rollback left."""
EVERY_TICKS = 5
"""At most; where a copy costs more than its share of so many steps, they lie further apart."""
LOOK_TICKS = 100
"""And at least so often it is looked whether one is due: the first step of a run says little of the others."""
CREDIT_S = 0.1
"""Spent at the beginning without waiting: a run that goes wrong at once has something to go back to."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    tick: int
    step: int
    state: Any
    restart: str = ""
    """Where this process cannot put it back itself: how the next one does, in words."""


class Rollback(Protocol):
    """What the client asks of whatever can take a run back: copies in memory, or checkpoints and a restart."""

    def regular(self, tick: int) -> None:
        """Called at every boundary; takes one when it is due."""

    def now(self, tick: int) -> object:
        """An actuator or an operator asks for one."""

    def before(self, tick: int) -> None:
        """A risky change comes: there has to be something to go back to. Raises what keeps it from being there."""

    def back(self, tick: int, now: int) -> Snapshot:
        """At tick `now`: go back to the newest from `tick` or before. Raises LookupError when none is that old."""

    @property
    def undoes(self) -> bool:
        """Whether what a rollback left is kept."""

    def undo(self) -> Snapshot:
        """Go forward again to what the last rollback left. Raises LookupError where nothing was kept."""


class Turns:
    """When it is looked at the clock whether a copy is due, in ticks: all ranks look at the same ones, and rank 0's
    clock goes, or one would have a copy that another lacks."""

    def __init__(
        self,
        pacing: Pacing,
        clock: Callable[[], float] = time.monotonic,
        share: Callable[[Any], Any] = lambda said: said,
    ) -> None:
        """`share` returns rank 0's argument on every rank (oven_learner.ranks)."""
        self.pacing, self.clock = pacing, clock
        self.share = share
        self._began: tuple[int, float] | None = None
        self._next = 0

    def come(self, tick: int) -> bool:
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
        self._take, self._restore = take, restore
        self._turns = Turns(Pacing(clock(), credit=credit), clock, share)
        self._first: Snapshot | None = None
        self._recent: dict[int, Snapshot] = {}
        """By number, in order."""
        self._left: Snapshot | None = None
        """What the last rollback left."""
        self._count = 0

    def across(self, share: Callable[[Any], Any]) -> None:
        """From now on rank 0's clock says on every rank when one is due."""
        self._turns.share = share

    @property
    def spent_s(self) -> float:
        """What all of them have cost so far."""
        return self._turns.pacing.spent

    @property
    def copies(self) -> int:
        """How many those were."""
        return self._turns.pacing.copies

    def regular(self, tick: int) -> None:
        if self._first is None or self._turns.come(tick):
            self.now(tick)

    def now(self, tick: int) -> int:
        """Take one, and return its step."""
        snapshot = self._copy(tick)
        if self._first is None:
            self._first = snapshot
        else:
            self._keep(snapshot)
        self._turns.taken(tick)
        return snapshot.step

    def _copy(self, tick: int) -> Snapshot:
        began = self._turns.clock()
        step, state = self._take()
        self._turns.pacing.took(began, self._turns.clock())
        return Snapshot(tick, step, state)

    def _keep(self, snapshot: Snapshot) -> None:
        self._count += 1
        counted = {**self._recent, self._count: snapshot}
        wanted = {n for level in range(LEVELS) for n in [n for n in counted if n % 2**level == 0][-EACH:]}
        self._recent = {n: one for n, one in counted.items() if n in wanted}

    def before(self, tick: int) -> None:
        self.now(tick)

    def back(self, tick: int, now: int) -> Snapshot:
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
        return self._put(fitting[-1])

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
        self._put(left)
        self._keep(left)
        return left

    def _put(self, snapshot: Snapshot) -> Snapshot:
        self._restore(snapshot.state)
        self._recent = {n: one for n, one in self._recent.items() if one.tick <= snapshot.tick}
        return snapshot
