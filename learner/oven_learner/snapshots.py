"""Snapshots of a run in memory: the first, and the latest few. What a rollback goes back to."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

KEPT = 8
EVERY_TICKS = 5


@dataclass(frozen=True, slots=True)
class Snapshot:
    tick: int
    step: int
    state: Any


class Snapshots:
    """Takes one at the start and then every few ticks; the first is never dropped.

    `take` returns (step, state) with copies that training cannot touch; `restore` puts a state back.
    """

    def __init__(self, take: Callable[[], tuple[int, Any]], restore: Callable[[Any], None]) -> None:
        self._take, self._restore = take, restore
        self._first: Snapshot | None = None
        self._recent: list[Snapshot] = []

    def regular(self, tick: int) -> None:
        """Called at every boundary; takes one when it is due."""
        newest = self._recent[-1] if self._recent else self._first
        if newest is None or tick >= newest.tick + EVERY_TICKS:
            self.now(tick)

    def now(self, tick: int) -> int:
        """Take one, and return its step."""
        step, state = self._take()
        snapshot = Snapshot(tick, step, state)
        if self._first is None:
            self._first = snapshot
        else:
            self._recent = [*self._recent, snapshot][-KEPT:]
        return step

    def back(self, tick: int) -> Snapshot:
        """Restore the newest snapshot taken at or before `tick`; later ones are dropped with the steps they stand for.

        Raises LookupError when none is that old.
        """
        fitting = [s for s in ([self._first] if self._first else []) + self._recent if s.tick <= tick]
        if not fitting:
            raise LookupError(
                f"no snapshot from tick {tick} or before; the oldest is from tick "
                f"{self._first.tick if self._first else '–'}"
            )
        chosen = fitting[-1]
        self._restore(chosen.state)
        self._recent = [s for s in self._recent if s.tick <= chosen.tick]
        return chosen
