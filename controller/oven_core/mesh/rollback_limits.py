"""The run's rollbacks: where each led, whether it did harm, and held-out quality since.

A rollback that is repeated without a gain is a loop: the run trains the same steps again and again, and ends where it
began. So no more than MOST lead to one place, or past it, until a held-out reading is better than all before it; and
none goes where a rollback did harm. A run without held-out readings is judged by its steps: a rollback counts until the
run has come as far beyond the step that it left as it was taken back.
"""

from __future__ import annotations

from bisect import bisect_right
from dataclasses import dataclass, field
from typing import Final

from oven_core.mesh.measurements import sound
from oven_core.protocol.messages import Receipt

MOST: Final = 2


@dataclass(slots=True)
class _Rollback:
    decision: str
    tick: int
    left: float
    """The step that it was called back from."""
    restored: float
    """The step that it was put back to."""
    harm: bool = False


@dataclass(slots=True)
class RollbackLimits:
    """One training's. The mesh feeds it observations, receipts and outcomes, and asks before it adopts a rollback."""

    _made: list[_Rollback] = field(default_factory=list)
    _best: tuple[float, int] | None = None
    """The best held-out reading, higher ones better, and its tick."""
    _offsets: list[tuple[int, int]] = field(default_factory=list)
    """(tick, step − tick) wherever the difference changed."""
    _furthest: float = 0.0
    """Step since the newest rollback."""

    def observe(self, tick: int, step: int, reading: float | None) -> None:
        """`reading` is that of the metric that stands for held-out quality, turned so that higher ones are better."""
        if not self._offsets or self._offsets[-1][1] != step - tick:
            self._offsets.append((tick, step - tick))
        self._furthest = max(self._furthest, float(step))
        if reading is not None and sound(reading) and (self._best is None or reading > self._best[0]):
            self._best = reading, tick

    def take(self, receipt: Receipt) -> None:
        """An applied rollback: its receipt has the step before and after."""
        left, restored = receipt.before, receipt.after
        if not isinstance(left, int | float) or not isinstance(restored, int | float):
            return  # an action that says nothing of steps
        self._made.append(_Rollback(receipt.decision_id, receipt.tick, float(left), float(restored)))
        self._furthest = float(restored)

    def harmed(self, decision: str) -> None:
        """The outcome of this rollback was harm."""
        for back in self._made:
            back.harm |= back.decision == decision

    def barred(self, tick: int) -> str:
        """Why the run may not go back to `tick` now; empty if it may."""
        step = self._step_at(tick)
        counted = [back for back in self._made if back.restored <= step and self._counts(back)]
        read = "no held-out reading was better since" if self._best else "the run came no further since"
        harm = next((back for back in counted if back.harm), None)
        if harm is not None:
            return f"the rollback of tick {harm.tick} to step {harm.restored:.0f} did harm, and {read}"
        if len(counted) < MOST:
            return ""
        ticks = " and ".join(str(back.tick) for back in counted[-MOST:])
        return (
            f"rolled back often enough: the rollbacks of ticks {ticks} led to step {counted[-1].restored:.0f}, {read}; "
            f"{MOST} are the limit"
        )

    def _counts(self, back: _Rollback) -> bool:
        if self._best is not None:
            return back.tick > self._best[1]
        newest = back is self._made[-1]
        return not newest or self._furthest <= back.left + (back.left - back.restored)

    def _step_at(self, tick: int) -> int:
        """The step of that tick's observation, or of the one before it."""
        at = bisect_right(self._offsets, (tick, 2**62)) - 1
        return tick + self._offsets[max(at, 0)][1] if self._offsets else tick
