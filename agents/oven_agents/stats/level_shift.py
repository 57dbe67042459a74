"""Compares the newest values of a series with earlier ones: how far they shifted, and the shift's standard error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from oven_agents.stats.robust_statistics import noise

MIN_EARLIER = 8
"""Minimum number of earlier values for an estimate of their level and noise."""


@dataclass(frozen=True, slots=True)
class Shift:
    """The shift between an earlier and a later part of a series. Differences need at least one value in each part."""

    before: Sequence[float]
    now: Sequence[float]

    @property
    def noise(self) -> float:
        """Standard deviation of a single earlier value (oven_agents.stats.robust_statistics)."""
        return noise(self.before)

    @property
    def mean_difference(self) -> float:
        return fmean(self.now) - fmean(self.before)

    @property
    def median_difference(self) -> float:
        return median(self.now) - median(self.before)

    @property
    def growth(self) -> float:
        """Ratio of the medians."""
        return median(self.now) / median(self.before)

    def standard_error(self, deviation: float) -> float:
        """Return the standard error of `mean_difference` for values with the standard deviation `deviation`."""
        return deviation * math.sqrt(1 / len(self.now) + 1 / len(self.before))


def shift_of_newest(values: Sequence[float], count: int) -> Shift:
    """Compare the last `count` values (at least one) with all earlier ones."""
    return Shift(values[:-count], values[-count:])


def shift_of_halves(values: Sequence[float]) -> Shift:
    """Compare the later half with the earlier one. If the number of values is odd, the later half has one more."""
    return Shift(values[: len(values) // 2], values[len(values) // 2 :])


def shift_at(series: Sequence[tuple[int, float]], onset: int) -> Shift:
    """Compare the values from tick `onset` on with the earlier ones."""
    return Shift([value for tick, value in series if tick < onset], [value for tick, value in series if tick >= onset])


def standardised_rise(values: Sequence[float], count: int) -> float:
    """Return how many standard errors the mean of the last `count` values lies above the median of the earlier ones.
    Return −inf for fewer than MIN_EARLIER earlier values. The result is too low on a falling series, because the median
    lies above the end of the trend. For independent noise, the result is roughly normally distributed. But 30 values
    give the noise only to about 20 %, so a result of 4.5 is as likely as 3.6 would be with known noise."""
    shift = shift_of_newest(values, count)
    if len(shift.before) < MIN_EARLIER:
        return -math.inf
    level = median(shift.before)
    spread = max(shift.noise, 1e-3 * abs(level), 1e-12)
    # Cap the differences, so that a single outlier is not a rise.
    capped = [min(max(value - level, -3 * spread), 3 * spread) for value in shift.now]
    return math.fsum(capped) / count / shift.standard_error(spread)
