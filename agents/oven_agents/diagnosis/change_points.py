"""Detects change points in a series with Page's CUSUM (1954, "Continuous inspection schemes", Biometrika 41) and the
Page-Hinkley test (Hinkley 1971, Biometrika 58), and estimates their onsets.

Both tests compare a series with its own earlier readings. A reading counts for at most MAX_DEVIATION standard
deviations, so that a single outlier is not a change. CUSUM makes two forecasts: the recent trend continues, or it
levels off. A reading is too high only if it is above both forecasts, and too low only if it is below both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final, Literal

from oven_agents.stats.robust_statistics import MAD_FACTOR, noise

REFERENCE_LENGTH: Final = 30
"""Number of readings from which level, trend and noise are estimated. With 30, the noise is accurate to about 20 %."""
REFERENCE_LENGTH_AFTER_CHANGE: Final = 15
"""Reference length after a change. It is shorter because the next change may follow soon, e.g. when a fault ends."""
UPDATE_INTERVAL: Final = 20
"""Minimum number of readings between two updates of the reference. Updates follow slow trends, but cost time."""
MAX_EXTRAPOLATION: Final = 30
"""Maximum number of readings over which a trend is extrapolated. Over hundreds of readings, a trend of 0.1 standard
deviations per reading raises an alarm in one of three series, and a third of that trend in one of ten."""
MAX_DEVIATION: Final = 4.0
"""Maximum deviation of one reading in standard deviations. Larger deviations are clipped."""
CUSUM_DRIFT: Final = 0.75
"""Standard deviations that CUSUM subtracts from each deviation: half of the smallest shift to detect (Page 1954)."""
CUSUM_LIMIT: Final = 14.0
"""Accumulated standard deviations at which CUSUM detects a change: after 5 clipped readings, or 19 that deviate by 1.5.
Noise alone can reach this limit, so detectors also require a minimum size (`Gauge.min_size`)."""
# Of series of 400 readings of noise, 1 in 6 has a change, 1 in 20 has one of size 2 or more, and 1 in 200 of 2.5.
PAGE_HINKLEY_DRIFT: Final = 0.3
"""Standard deviations that the Page-Hinkley test subtracts from each deviation."""
PAGE_HINKLEY_LIMIT: Final = 45.0
"""Accumulated standard deviations at which the Page-Hinkley test detects a drift that is too slow for CUSUM."""
MIN_NOISE_SHARE: Final = 1e-3
"""Minimum noise as a share of the level, so that a rounding error in a nearly constant metric is not a change."""
MAX_READINGS_FOR_MEAN: Final = 10
"""The level of at most this many readings is their mean. The level of more readings is their median."""
MIN_TREND: Final = 1.2  # without a trend, the medians' difference has a standard deviation of 0.56 (30 readings)
"""Minimum difference between the medians of a reference's first and last third for a trend, in standard deviations."""


@dataclass(frozen=True, slots=True)
class Change:
    """A lasting change of a series. Positions are indices of its readings."""

    test: Literal["cusum", "page_hinkley"]
    sign: Literal[1, -1]
    """1 for an increase, −1 for a decrease."""
    onset: int
    """Estimated first reading of the new level: the reading from which the test's sum started to rise."""
    detected_at: int
    """Reading at which the test detected the change."""
    before: float
    """Level before the change."""
    after: float
    """Level from the onset to the detection. For a slow drift, only the last readings count."""
    noise: float
    """Standard deviation of one reading before the change."""

    @property
    def size(self) -> float:
        """Difference between the levels in standard deviations of one reading."""
        return abs(self.after - self.before) / self.noise


@dataclass(frozen=True, slots=True)
class Reference:
    """The level and trend to compare the next readings with."""

    level: float
    """Level at the end of the readings."""
    slope: float
    """Change of the level per reading; 0 without a trend."""
    noise: float
    """Standard deviation of one reading around the trend; never 0."""

    @classmethod
    def from_readings(cls, values: Sequence[float]) -> Reference:
        """Estimate the reference from readings, oldest first."""
        third = len(values) // 3
        early, late, middle = median(values[:third]), median(values[-third:]), median(values)
        noise_std = max(noise(values), MIN_NOISE_SHARE * abs(middle), 1e-12)
        if abs(late - early) < MIN_TREND * noise_std:
            return cls(middle, 0.0, noise_std)
        slope = (late - early) / (len(values) - third)
        level = late + slope * third / 2  # `late` is the level in the middle of the last third
        residual = median([abs(value - level + slope * age) for age, value in enumerate(reversed(values))])
        return cls(level, slope, max(noise_std, MAD_FACTOR * residual))


def _estimate_level(values: Sequence[float]) -> float:
    """Return the mean of at most MAX_READINGS_FOR_MEAN readings, or the median of more. A few readings are detected
    only if most are extreme, so a single outlier does not distort their mean."""
    return fmean(values) if len(values) <= MAX_READINGS_FOR_MEAN else median(values)


def cusum(values: Sequence[float]) -> list[Change]:
    """Return all changes, oldest first. After each change, the series is compared with its new level."""
    changes: list[Change] = []
    start, reference_length = 0, REFERENCE_LENGTH
    while len(values) - start > reference_length:
        change = _find_first_change(values, start, reference_length)
        if change is None:
            break
        changes.append(change)
        start, reference_length = max(change.onset, start + 1), REFERENCE_LENGTH_AFTER_CHANGE
    return changes


def _find_first_change(values: Sequence[float], start: int, reference_length: int) -> Change | None:
    reference = Reference.from_readings(values[start : start + reference_length])
    level, slope, inverse_noise = reference.level, reference.slope, 1 / reference.noise
    up_sum = down_sum = 0.0
    up_start = down_start = last_update = start + reference_length
    for index in range(start + reference_length, len(values)):
        value = values[index]
        trend = level + slope * min(index - last_update + 1, MAX_EXTRAPOLATION)
        high_forecast, low_forecast = (trend, level) if slope > 0 else (level, trend)
        up_sum += _clip((value - high_forecast) * inverse_noise) - CUSUM_DRIFT
        down_sum += _clip((low_forecast - value) * inverse_noise) - CUSUM_DRIFT
        if up_sum <= 0.0:
            up_sum, up_start = 0.0, index + 1
        elif up_sum > CUSUM_LIMIT:
            after = _estimate_level(values[up_start : index + 1])
            return Change("cusum", 1, up_start, index, level, after, reference.noise)
        if down_sum <= 0.0:
            down_sum, down_start = 0.0, index + 1
        elif down_sum > CUSUM_LIMIT:
            after = _estimate_level(values[down_start : index + 1])
            return Change("cusum", -1, down_start, index, level, after, reference.noise)
        if index >= last_update + UPDATE_INTERVAL and not up_sum and not down_sum:
            reference = Reference.from_readings(values[index + 1 - reference_length : index + 1])
            level, slope, inverse_noise = reference.level, reference.slope, 1 / reference.noise
            last_update = index + 1
    return None


def page_hinkley(values: Sequence[float], sign: Literal[1, -1]) -> Change | None:
    """Return the first slow drift from the initial level in the direction `sign`; None if there is none."""
    if len(values) <= REFERENCE_LENGTH:
        return None
    level = median(values[:REFERENCE_LENGTH])
    noise_std = max(noise(values[:REFERENCE_LENGTH]), MIN_NOISE_SHARE * abs(level), 1e-12)
    total, minimum, onset = 0.0, 0.0, REFERENCE_LENGTH
    for index in range(REFERENCE_LENGTH, len(values)):
        total += _clip(sign * (values[index] - level) / noise_std) - PAGE_HINKLEY_DRIFT
        if total <= minimum:
            minimum, onset = total, index + 1
        elif total - minimum > PAGE_HINKLEY_LIMIT:
            after = _estimate_level(values[max(onset, index - REFERENCE_LENGTH) : index + 1])
            return Change("page_hinkley", sign, onset, index, level, after, noise_std)
    return None


def _clip(deviation: float) -> float:  # with `min` and `max`, CUSUM would take 1.6 times as long
    return MAX_DEVIATION if deviation > MAX_DEVIATION else -MAX_DEVIATION if deviation < -MAX_DEVIATION else deviation
