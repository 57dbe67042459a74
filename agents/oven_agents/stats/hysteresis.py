"""Conditions that begin at one bound and end at another. No state is kept: the series shows it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from statistics import median
from typing import Final

NOW: Final = 5
"""Newest values whose median is a gauge's level: two outliers cannot change it, and it lags by three ticks."""


def stands(count: int, begins: Callable[[int], bool], ends: Callable[[int], bool]) -> bool:
    """Return whether the condition holds at the last of `count` places, by the last place at which it began or ended.
    False if neither ever happened."""
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
    """Return whether the level fell below `begins` and has not risen to `ends` since."""

    def is_below(index: int, bound: float) -> bool:
        now = level(values, index)
        return now is not None and now < bound

    return stands(len(values), lambda index: is_below(index, begins), lambda index: not is_below(index, ends))
