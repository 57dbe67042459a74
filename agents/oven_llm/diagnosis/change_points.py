"""Detects change points in a series with Page's CUSUM and the Page-Hinkley test, and estimates their onsets. Pure.

Both tests compare a series with its own recent readings. No reading counts for more than CLIP standard deviations, so
that a single outlier is not a change. CUSUM allows for a trend that continues or levels off: a reading is too high only
if it is above both, and too low only if it is below both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final, Literal

from oven_agents.stats.robust_statistics import noise

LEARN: Final = 30
"""Readings used to estimate level, trend and noise. 30 readings give the noise to within about 20 %."""
AGAIN: Final = 15
"""The same after a change: a second change may follow soon, for example when a fault ends."""
SETTLE: Final = 20
"""Readings between two updates of the level, so that it follows a slow trend, and medians stay cheap."""
AHEAD: Final = 30
"""Maximum readings that a trend is extrapolated. A trend of a tenth of the noise per reading, over hundreds of
readings, raises in one of three series; a third of that trend raises in one of ten."""
CLIP: Final = 4.0
"""Maximum deviation of one reading, in standard deviations. Larger ones are clipped."""
DRIFT: Final = 0.75
"""Standard deviations that the mean must move before it accumulates: half of the smallest shift that matters, 1.5
(Page 1954, "Continuous inspection schemes", Biometrika 41)."""
LIMIT: Final = 14.0
"""Accumulated standard deviations at which CUSUM raises: five readings far out, or eighteen at 1.5. A level estimated
from 30 readings is inexact, so noise raises too: in one of six series of 400 normal readings, by a median of 1.3
standard deviations; by more than 2 in one of twenty, by more than 2.5 in one of two hundred. Each gauge sets the
minimum size of a change."""
PH_DRIFT: Final = 0.3
"""Drift of the Page-Hinkley test (Hinkley 1971, Biometrika 58): a slow drift must be steeper than this."""
PH_LIMIT: Final = 45.0
"""Limit of the Page-Hinkley test, which finds drifts too slow for CUSUM, whose level follows them."""
LEAST: Final = 1e-3
"""Minimum noise as a share of the level: otherwise a nearly constant gauge would raise at a rounding error."""
FEW: Final = 10
"""Maximum readings for which the mean is the level instead of the median."""
TREND: Final = 1.2
"""Standard deviations between the first and the last third of a reference that make a trend. By chance, the medians of
two thirds of 30 readings differ by 0.56."""


@dataclass(frozen=True, slots=True)
class Change:
    """A lasting change of a series. Positions are indices of its readings."""

    test: Literal["cusum", "page_hinkley"]
    sign: Literal[1, -1]
    """1: up."""
    onset: int
    """The first reading of the new level, by Page's estimate."""
    raised: int
    """The reading at which the test detected it."""
    before: float
    """Level before the change."""
    after: float
    """Level from the onset to the detection."""
    noise: float
    """Standard deviation of one reading before."""

    @property
    def size(self) -> float:
        """Return the difference between the levels, in standard deviations of one reading."""
        return abs(self.after - self.before) / self.noise


@dataclass(frozen=True, slots=True)
class Reference:
    """The level and trend that the next readings are compared with."""

    level: float
    """Level at the end of the readings."""
    slope: float
    """Per reading; 0 without a trend."""
    noise: float
    """Standard deviation of one reading around the trend; never 0."""

    @classmethod
    def estimated(cls, values: Sequence[float]) -> Reference:
        """Estimate the reference from readings, oldest first."""
        third = len(values) // 3
        early, late, middle = median(values[:third]), median(values[-third:]), median(values)
        spread = max(noise(values), LEAST * abs(middle), 1e-12)
        if abs(late - early) < TREND * spread:
            return cls(middle, 0.0, spread)
        slope = (late - early) / (len(values) - third)
        level = late + slope * third / 2
        residual = median([abs(value - level + slope * age) for age, value in enumerate(reversed(values))])
        return cls(level, slope, max(spread, 1.4826 * residual))


def _level(values: Sequence[float]) -> float:
    """Return the mean of a few readings, most of which are far out because of CLIP; otherwise the median."""
    return fmean(values) if len(values) <= FEW else median(values)


def cusum(values: Sequence[float]) -> list[Change]:
    """Return all changes, oldest first. After each, the series is compared with its new level."""
    changes: list[Change] = []
    start, learn = 0, LEARN
    while len(values) - start > learn:
        change = _first_change(values, start, learn)
        if change is None:
            break
        changes.append(change)
        start, learn = max(change.onset, start + 1), AGAIN
    return changes


def _first_change(values: Sequence[float], start: int, learn: int) -> Change | None:
    reference = Reference.estimated(values[start : start + learn])
    level, slope, unit = reference.level, reference.slope, 1 / reference.noise
    up = down = 0.0
    up_from = down_from = updated = start + learn
    for index in range(start + learn, len(values)):
        value = values[index]
        trend = level + slope * min(index - updated + 1, AHEAD)
        high, low = (trend, level) if slope > 0 else (level, trend)
        score = (value - high) * unit
        up += (CLIP if score > CLIP else -CLIP if score < -CLIP else score) - DRIFT
        score = (low - value) * unit
        down += (CLIP if score > CLIP else -CLIP if score < -CLIP else score) - DRIFT
        if up <= 0.0:
            up, up_from = 0.0, index + 1
        elif up > LIMIT:
            return Change("cusum", 1, up_from, index, level, _level(values[up_from : index + 1]), reference.noise)
        if down <= 0.0:
            down, down_from = 0.0, index + 1
        elif down > LIMIT:
            return Change("cusum", -1, down_from, index, level, _level(values[down_from : index + 1]), reference.noise)
        if index >= updated + SETTLE and not up and not down:
            reference = Reference.estimated(values[index + 1 - learn : index + 1])
            level, slope, unit = reference.level, reference.slope, 1 / reference.noise
            updated = index + 1
    return None


def page_hinkley(values: Sequence[float], sign: Literal[1, -1]) -> Change | None:
    """Return the first slow drift in that direction from the level of the first LEARN readings, None without one."""
    if len(values) <= LEARN:
        return None
    level = median(values[:LEARN])
    deviation = max(noise(values[:LEARN]), LEAST * abs(level), 1e-12)
    total, least, onset = 0.0, 0.0, LEARN
    for index in range(LEARN, len(values)):
        score = sign * (values[index] - level) / deviation
        total += (CLIP if score > CLIP else -CLIP if score < -CLIP else score) - PH_DRIFT
        if total <= least:
            least, onset = total, index + 1
        elif total - least > PH_LIMIT:
            after = _level(values[max(onset, index - LEARN) : index + 1])
            return Change("page_hinkley", sign, onset, index, level, after, deviation)
    return None
