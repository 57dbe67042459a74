"""Which steps' completions are shown, and which of their groups."""

from __future__ import annotations


class SampleSchedule:
    """Every so many steps; the groups take turns, so that the same place in the batch is not shown each time. It draws
    nothing: the training's random numbers are the training's."""

    def __init__(self, every: int, groups: int) -> None:
        """`every` 0: none. `groups`: of such a step, at most."""
        self._every, self._groups = every, groups
        self._last: int | None = None
        self._turn = 0

    def due(self, tick: int) -> bool:
        """Whether this tick's are; the first are."""
        return bool(self._every) and (self._last is None or tick - self._last >= self._every or tick < self._last)

    def take(self, tick: int, groups: int) -> list[int]:
        """The places of the groups to show of a tick that is due, of as many as it has."""
        self._last = tick
        count = min(self._groups, groups)
        chosen = [(self._turn + place) % groups for place in range(count)] if groups else []
        self._turn += count
        return chosen
