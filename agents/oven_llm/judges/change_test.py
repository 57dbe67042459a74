"""Whether a judge is still the one that it was: its scores of old groups against its own earlier ones. Pure.

A group was scored a first time, soon afterwards a second time, and is scored again later. A judge that did not change
is as far from its first scores now as it was the second time, by chance a little more or less: the two distances are
exchangeable, and the difference of each group is as likely to have either sign. So the sum of the differences over the
groups has an exact distribution over all signs (Fisher's randomization test), whatever the judge's noise is.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from fractions import Fraction
from typing import Final

ALPHA: Final = 0.001
"""The chance of a false alarm each time that the old groups are asked again: in a run with 50 such passes at most one
in twenty. Sixteen groups that all moved have p = 2⁻¹⁶."""
LEAST: Final = 12
"""Groups that must have answered: of fewer than ten no p is below ALPHA."""
UNIT: Final = 1000
"""Scores are compared in thousandths, whole numbers, so that equal sums are equal."""


def p_value(
    first: Sequence[Sequence[float]], second: Sequence[Sequence[float]], now: Sequence[Sequence[float]]
) -> float:
    """The probability of scores as far from the first as now's, or further, had the judge not changed. Each argument
    has the scores of the same groups, in the same order."""
    differences = [_distance(a, c) - _distance(a, b) for a, b, c in zip(first, second, now, strict=True)]
    reached = sum(differences)
    sums = Counter({0: 1})
    for size in map(abs, differences):
        if size:
            sums = _either_sign(sums, size)
    total = sums.total()
    return float(Fraction(sum(ways for value, ways in sums.items() if value >= reached), total))


def _either_sign(sums: Counter[int], size: int) -> Counter[int]:
    found: Counter[int] = Counter()
    for value, ways in sums.items():
        found[value + size] += ways
        found[value - size] += ways
    return found


def _distance(a: Sequence[float], b: Sequence[float]) -> int:
    return sum(round(UNIT * abs(x - y)) for x, y in zip(a, b, strict=True))
