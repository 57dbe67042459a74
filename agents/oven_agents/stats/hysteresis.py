"""Whether a condition stands that begins at one bound and ends at another: no state is kept, the series tells it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

NOW: Final = 5
"""Newest values of which the median is what a gauge is now: two odd steps cannot turn it, and of twenty ticks in which
an alert is wanted it takes three."""


def stands(count: int, begins: Callable[[int], bool], ends: Callable[[int], bool]) -> bool:
    """Whether it does at the last of `count` places: what was met last, of where it begins and where it ends, the
    former where both are. Between the two bounds it is as it was before; False where neither was ever met."""
    for index in range(count - 1, -1, -1):
        if begins(index):
            return True
        if ends(index):
            return False
    return False


def level(values: Sequence[float], index: int) -> float | None:
    """Return the median of the NOW values up to `index`, included; None if there are fewer."""
    return median(values[index + 1 - NOW : index + 1]) if index + 1 >= NOW else None


def below(values: Sequence[float], begins: float, ends: float) -> bool:
    """Whether the level fell below `begins` and has not risen to `ends` since."""

    def is_beyond(index: int, bound: float) -> bool:
        now = level(values, index)
        return now is not None and now < bound

    return stands(len(values), lambda index: is_beyond(index, begins), lambda index: not is_beyond(index, ends))
