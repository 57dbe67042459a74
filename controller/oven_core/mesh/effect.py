"""Effect of a change on a metric, from measurements on either side: the gain and its standard error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass

MAD_TO_SIGMA = 1.4826
"""A median absolute deviation as a standard deviation, under a normal law."""


@dataclass(frozen=True, slots=True)
class Effect:
    """`gain` is after − before in the metric's better direction, `noise` its standard error."""

    before: float
    after: float
    gain: float
    noise: float


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def median(values: Sequence[float]) -> float:
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else ordered[half - 1] / 2 + ordered[half] / 2


def sigma(values: Sequence[float]) -> float:
    """The spread of one measurement, from the median absolute deviation, which one odd step cannot turn (Hampel 1974).

    Where more than half of them are equal that is 0 although they vary, and any change would be certain: then the
    standard deviation. 0 for a constant sample.
    """
    middle = median(values)
    robust = MAD_TO_SIGMA * median([abs(value - middle) for value in values])
    if robust > 0 or len(values) < 2:
        return robust
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) * (value - centre) for value in values) / (len(values) - 1))


def effect(before: Sequence[float], after: Sequence[float], sign: int, usual: Sequence[float]) -> Effect:
    """The spread of one measurement is that of the `usual` ones, all from before the change: one that makes the metric
    jump about must not hide behind that."""
    one, other = mean(before), mean(after)
    noise = sigma(usual) * math.sqrt(1 / len(before) + 1 / len(after))
    return Effect(one, other, (other - one) * sign, noise)
