"""Which steps' completions are shown, and which of their groups."""

from __future__ import annotations


class SampleSchedule:
    """Every so many steps; the groups take turns, so that the same place in the batch is not shown each time. It draws
    nothing: the training's random numbers are the training's."""

    def __init__(self, every: int, groups: int) -> None:
        """`groups`: of such a step, at most."""
        self.next = 0
        """The count of steps from which on the next is due; it is read at every step, so it is a plain number."""
        self._every, self._groups = every, groups
        self._turn = 0

    def restart(self) -> None:
        """Steps are counted anew."""
        self.next = 0

    def take(self, count: int, groups: int) -> range:
        """The groups of a step that is due, of as many as it has; they are to be taken modulo that."""
        self.next = count + self._every
        first = self._turn
        self._turn += min(self._groups, groups)
        return range(first, self._turn)
