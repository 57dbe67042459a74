"""Statistics that one odd step cannot turn. Plain Python: an agent's process carries no numpy."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from statistics import median


def quantile(values: Sequence[float], share: float) -> float:
    """The `share` quantile, linearly interpolated (type 7 of Hyndman & Fan 1996). Needs at least one value."""
    ordered = sorted(values)
    position = share * (len(ordered) - 1)
    below = math.floor(position)
    above = min(below + 1, len(ordered) - 1)
    return ordered[below] + (position - below) * (ordered[above] - ordered[below])


def noise(values: Sequence[float]) -> float:
    """Standard deviation of one value around a slow trend, from the median absolute difference of neighbours.

    Differences take the trend out; 1.4826 makes a median absolute deviation a standard deviation under a normal
    law, and √2 is what differencing adds. 0 for fewer than three values.
    """
    steps = [abs(b - a) for a, b in itertools.pairwise(values)]
    return 1.4826 * median(steps) / math.sqrt(2) if len(steps) >= 2 else 0.0


def bending_noise(values: Sequence[float]) -> float:
    """Standard deviation of one value around a trend that bends slowly, from the median absolute second difference:
    second differences have six times its variance. 0 for fewer than three values."""
    bends = [abs(a - 2 * b + c) for a, b, c in zip(values, values[1:], values[2:], strict=False)]
    return 1.4826 * median(bends) / math.sqrt(6) if bends else 0.0


def since(values: Sequence[float], level: float, lately: int = 3) -> int:
    """How many of the last values came after a rise from `level`: the most likely change point under normal noise, for
    a height that is the mean of the last few (Page 1954, "Continuous inspection schemes", Biometrika 41). At least 1.
    """
    middle = (level + math.fsum(values[-lately:]) / len(values[-lately:])) / 2
    excess = list(itertools.accumulate(value - middle for value in reversed(values)))
    return max(range(len(excess)), key=excess.__getitem__) + 1


def best_level(values: Sequence[float], width: int = 3) -> float:
    """The highest median of `width` neighbours: how good it has been, not counting lucky single steps."""
    if len(values) <= width:
        return median(values)
    if width == 3 and (total := sum(values)) == total:  # the same figure where all can be compared: none is NaN
        return max(
            b if a <= b <= c or c <= b <= a else a if b <= a <= c or c <= a <= b else c
            for a, b, c in zip(values, values[1:], values[2:], strict=False)
        )
    if width % 2:  # the same figure, without what `median` asks first
        return max(sorted(values[i : i + width])[width // 2] for i in range(len(values) - width + 1))
    return max(median(values[i : i + width]) for i in range(len(values) - width + 1))


def total_variation(p: dict[str, float], q: dict[str, float]) -> float:
    """Half the sum of absolute differences of two distributions: the share of mass that would move."""
    return sum(abs(p[name] - q[name]) for name in p) / 2
