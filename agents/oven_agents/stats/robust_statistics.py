"""Outlier-resistant statistics in plain Python, because agent processes do not import numpy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import median

MAD_FACTOR = 1.4826
"""Standard deviation of a normal distribution divided by its median absolute deviation."""


def quantile(values: Sequence[float], share: float) -> float:
    """Return the `share` quantile, linearly interpolated (type 7 of Hyndman & Fan 1996). Needs at least one value."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def noise(values: Sequence[float]) -> float:
    """Return the standard deviation of one value around a slow trend, from the median absolute difference of
    neighbours. Return 0 for fewer than three values. The noise is assumed to be normal."""
    differences = [abs(later - earlier) for earlier, later in itertools.pairwise(values)]
    # The difference of two values has √2 times the standard deviation of one.
    return MAD_FACTOR * median(differences) / math.sqrt(2) if len(differences) >= 2 else 0.0


def bending_noise(values: Sequence[float]) -> float:
    """Return the standard deviation of one value around a slowly bending trend, from second differences. For
    independent values, a second difference has √6 times the standard deviation of one value."""
    differences = [abs(a - 2 * b + c) for a, b, c in zip(values, values[1:], values[2:], strict=False)]
    return MAD_FACTOR * median(differences) / math.sqrt(6) if differences else 0.0


def expected_maximum(count: int) -> float:
    """Return the approximate maximum of `count` normal values, in standard deviations above their mean."""
    return math.sqrt(2 * math.log(count))


def steps_since_rise(values: Sequence[float], level: float, recent: int = 3) -> int:
    """Return the number of values since the most likely start of a rise from `level`, at least 1. Noise is assumed to
    be normal, and the new level to be the mean of the last `recent` values (Page 1954, "Continuous inspection schemes",
    Biometrika 41)."""
    middle = (level + math.fsum(values[-recent:]) / len(values[-recent:])) / 2
    cumulative_excess = list(itertools.accumulate(value - middle for value in reversed(values)))
    return cumulative_excess.index(max(cumulative_excess)) + 1


def best_level(values: Sequence[float]) -> float:
    """Return the maximum of the medians of three neighbours, so that a single lucky step does not count."""
    if len(values) <= 3:
        return median(values)
    return max(sorted(values[i : i + 3])[1] for i in range(len(values) - 2))
