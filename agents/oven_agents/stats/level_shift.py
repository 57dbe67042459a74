"""Measures how far the newest values of a series have shifted from earlier ones, with a standard error."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median

from oven_agents.stats.robust_statistics import noise

EARLIER = 8
"""Earlier values that are needed to know their level and noise."""


@dataclass(frozen=True, slots=True)
class Shift:
    """Two parts of one series; neither may be empty when a difference is read."""

    before: Sequence[float]
    now: Sequence[float]

    @property
    def noise(self) -> float:
        """Standard deviation of a single earlier value (oven_agents.stats.robust_statistics)."""
        return noise(self.before)

    @property
    def of_means(self) -> float:
        return fmean(self.now) - fmean(self.before)

    @property
    def of_medians(self) -> float:
        return median(self.now) - median(self.before)

    @property
    def growth(self) -> float:
        """Ratio of the medians."""
        return median(self.now) / median(self.before)

    def error(self, deviation: float) -> float:
        """Return the standard error of the difference of means, for values with that standard deviation."""
        return deviation * math.sqrt(1 / len(self.now) + 1 / len(self.before))


def newest(values: Sequence[float], count: int) -> Shift:
    """Compare the last `count` values, at least one, with all before them."""
    return Shift(values[:-count], values[-count:])


def halves(values: Sequence[float]) -> Shift:
    """Compare the later half with the earlier; of an odd number the later half has one more."""
    return Shift(values[: len(values) // 2], values[len(values) // 2 :])


def shift_at(series: Sequence[tuple[int, float]], onset: int) -> Shift:
    """Compare the values from tick `onset` on with those before it."""
    return Shift([value for tick, value in series if tick < onset], [value for tick, value in series if tick >= onset])


def rise(values: Sequence[float], count: int) -> float:
    """Return by how many standard errors the mean of the last `count` values exceeds the median of the earlier ones.

    The error comes from their `noise`, so it is too low on a falling series. Independent noise exceeds z with the
    normal law's probability; 30 values give the noise to about 20 %, so that 4.5 is as rare as 3.6. Returns −inf for
    fewer than EARLIER earlier values.
    """
    shift = newest(values, count)
    if len(shift.before) < EARLIER:
        return -math.inf
    level = median(shift.before)
    spread = max(shift.noise, 1e-3 * abs(level), 1e-12)
    capped = [min(max(value - level, -3 * spread), 3 * spread) for value in shift.now]  # one odd value is not a rise
    return math.fsum(capped) / count / shift.error(spread)
