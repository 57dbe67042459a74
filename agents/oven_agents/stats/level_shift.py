"""The newest values of a series against those before them: by how much they shifted, and against which error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from oven_agents.stats.robust_statistics import noise

EARLIER = 8
"""Earlier values without which their level and noise are not known."""


@dataclass(frozen=True, slots=True)
class Shift:
    """Two parts of one series, neither of them empty where it is asked for a difference."""

    before: Sequence[float]
    now: Sequence[float]

    @property
    def noise(self) -> float:
        """Standard deviation of a single earlier value (oven_agents.stats.robust_statistics)."""
        return noise(self.before)

    @property
    def of_means(self) -> float:
        """Difference of the means."""
        return fmean(self.now) - fmean(self.before)

    @property
    def of_medians(self) -> float:
        """Difference of the medians."""
        return median(self.now) - median(self.before)

    @property
    def growth(self) -> float:
        """Ratio of the medians."""
        return median(self.now) / median(self.before)

    def error(self, deviation: float) -> float:
        """Standard error of the difference of means of values with that standard deviation."""
        return deviation * math.sqrt(1 / len(self.now) + 1 / len(self.before))


def newest(values: Sequence[float], count: int) -> Shift:
    """The last `count` values, at least one, against all before them."""
    return Shift(values[:-count], values[-count:])


def halves(values: Sequence[float]) -> Shift:
    """The later half against the earlier; of an odd number the later has one more."""
    return Shift(values[: len(values) // 2], values[len(values) // 2 :])


def shift_at(series: Sequence[tuple[int, float]], onset: int) -> Shift:
    """The values from tick `onset` on against those before it."""
    return Shift([value for tick, value in series if tick < onset], [value for tick, value in series if tick >= onset])


def rise(values: Sequence[float], count: int) -> float:
    """By how many standard errors the mean of the last `count` values lies above the level of those before them.

    The level is the median of the earlier ones and the error from their `noise`, so that on a falling series it errs
    low. For independent noise a value of z is exceeded with the normal law's probability; the noise of 30 values is
    known to about 20 %, which makes 4.5 as rare as 3.6 would be. −inf without at least EARLIER earlier values.
    """
    shift = newest(values, count)
    if len(shift.before) < EARLIER:
        return -math.inf
    level = median(shift.before)
    spread = max(shift.noise, 1e-3 * abs(level), 1e-12)
    held = [min(max(value - level, -3 * spread), 3 * spread) for value in shift.now]  # one odd value is no rise
    return math.fsum(held) / count / shift.error(spread)
