"""Recent measurements of every metric that could judge a decision; bounded, however long the run."""

from __future__ import annotations

from collections import deque
from collections.abc import Iterable, Mapping

KEPT = 512
"""Measurements of one metric."""
METRICS = 128
"""Metrics that are kept at all: the first that the learner announced with a better direction."""
_SOUND = 1e100  # beyond it a metric has diverged, and sums of it may overflow


def sound(value: float) -> bool:
    """Whether it is a measurement: neither NaN nor infinite, nor on its way there."""
    return abs(value) <= _SOUND


class Measurements:
    """(tick, step, value) of each watched metric, oldest first; what is not sound is kept, since it tells of a
    failure."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._of: dict[str, deque[tuple[int, int, float]]] = {
            name: deque(maxlen=KEPT) for name in list(names)[:METRICS]
        }

    def __contains__(self, name: str) -> bool:
        return name in self._of

    def add(self, tick: int, step: int, metrics: Mapping[str, float]) -> None:
        for name, kept in self._of.items():
            value = metrics.get(name)
            if value is None:
                continue
            if kept and kept[-1][0] == tick:
                kept.pop()  # the last word on a tick counts
            kept.append((tick, step, value))

    def between(self, name: str, after: int, until: int) -> list[float]:
        """The values of the ticks `after` < tick ≤ `until`."""
        return [value for tick, _, value in self._of.get(name, ()) if after < tick <= until]

    def of_steps(self, name: str, after: float, until: float, *, since: int, upto: int) -> list[float]:
        """The values of the steps `after` < step ≤ `until`, of the ticks `since` < tick ≤ `upto`; where the run came by
        a step twice in that time, both."""
        return [value for tick, step, value in self._of.get(name, ()) if after < step <= until and since < tick <= upto]
