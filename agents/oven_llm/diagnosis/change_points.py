"""Change points of a series: Page's CUSUM and the Page-Hinkley test, with the place where each change began. Pure.

Both hold a series against its own recent readings, robustly, and no reading counts for more than CLIP standard
deviations, so that one odd step does not count as a change. CUSUM allows for a trend that continues, or that levels
off: a reading is too high only where it is above both, and too low only where it is below both."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from statistics import fmean, median
from typing import Final, Literal

from oven_agents.stats.robust_statistics import noise

LEARN: Final = 30
"""Readings that a level, its trend and its noise are taken from: the noise of 30 is known to about 20 %."""
AGAIN: Final = 15
"""The same after a change: a second one may follow soon, as where a fault ends."""
SETTLE: Final = 20
"""Readings between two looks at the level while nothing accumulates: a slow trend moves the level along, and a median
costs little this way."""
AHEAD: Final = 30
"""Readings that a trend is continued for at most: one that moves the level by a tenth of the noise at every reading,
for hundreds, raises in one series of three, and one of a third of that in one of ten."""
CLIP: Final = 4.0
"""Standard deviations that one reading counts for at most."""
DRIFT: Final = 0.75
"""Standard deviations by which the mean must have moved to accumulate: half of the smallest shift that matters, 1.5
(Page 1954, "Continuous inspection schemes", Biometrika 41)."""
LIMIT: Final = 14.0
"""Accumulated standard deviations at which CUSUM raises: five readings far out, or eighteen at 1.5. A level of 30
readings is not known exactly, so that noise raises too: in one of six series of 400 normal readings, by a median of
1.3 standard deviations; by more than 2 in one of twenty, by more than 2.5 in one of two hundred. What a change has to
measure is each gauge's own."""
PH_DRIFT: Final = 0.3
"""Of the Page-Hinkley test (Hinkley 1971, Biometrika 58): a slow drift must be steeper than this."""
PH_LIMIT: Final = 45.0
"""Of the Page-Hinkley test: it finds what is too slow for CUSUM, whose level moves along with it."""
LEAST: Final = 1e-3
"""Noise is at least this share of the level: a gauge that hardly moves would alarm at a rounding error."""
FEW: Final = 10
"""Readings of which the mean is a level."""
TREND: Final = 1.2
"""Standard deviations that the last third of a reference must lie off the first for a trend: the medians of two thirds
of 30 differ by 0.56 by chance."""


@dataclass(frozen=True, slots=True)
class Change:
    """A lasting change of a series. Places are indices of its readings."""

    test: Literal["cusum", "page_hinkley"]
    sign: Literal[1, -1]
    """1: up."""
    onset: int
    """The first reading of the new level, as Page's estimate has it."""
    raised: int
    """The reading at which the test raised."""
    before: float
    """Level that it was held against."""
    after: float
    """Level from the onset to where it raised."""
    noise: float
    """Standard deviation of one reading before."""

    @property
    def size(self) -> float:
        """In standard deviations of one reading."""
        return abs(self.after - self.before) / self.noise


@dataclass(frozen=True, slots=True)
class Reference:
    """What the next readings are held against."""

    level: float
    """At its end."""
    slope: float
    """Per reading; 0 where no trend shows."""
    noise: float
    """Standard deviation of one reading around the trend; never 0."""

    @classmethod
    def of(cls, values: Sequence[float]) -> Reference:
        third = len(values) // 3
        early, late, middle = median(values[:third]), median(values[-third:]), median(values)
        spread = max(noise(values), LEAST * abs(middle), 1e-12)
        if abs(late - early) < TREND * spread:
            return cls(middle, 0.0, spread)
        slope = (late - early) / (len(values) - third)
        level = late + slope * third / 2
        off = median([abs(value - level + slope * place) for place, value in enumerate(reversed(values))])
        return cls(level, slope, max(spread, 1.4826 * off))


def _level(values: Sequence[float]) -> float:
    """The mean of a few readings, of which CLIP has made sure that several lie far out; of more the median, in which
    single odd ones do not count."""
    return fmean(values) if len(values) <= FEW else median(values)


def cusum(values: Sequence[float]) -> list[Change]:
    """All changes, oldest first; after each the series is held against its new level."""
    found: list[Change] = []
    start, learn = 0, LEARN
    while len(values) - start > learn:
        change = _first_change(values, start, learn)
        if change is None:
            break
        found.append(change)
        start, learn = max(change.onset, start + 1), AGAIN
    return found


def _first_change(values: Sequence[float], start: int, learn: int) -> Change | None:
    reference = Reference.of(values[start : start + learn])
    level, slope, unit = reference.level, reference.slope, 1 / reference.noise
    up = down = 0.0
    up_from = down_from = looked = start + learn
    for place in range(start + learn, len(values)):
        value = values[place]
        trend = level + slope * min(place - looked + 1, AHEAD)
        high, low = (trend, level) if slope > 0 else (level, trend)
        score = (value - high) * unit
        up += (CLIP if score > CLIP else -CLIP if score < -CLIP else score) - DRIFT
        score = (low - value) * unit
        down += (CLIP if score > CLIP else -CLIP if score < -CLIP else score) - DRIFT
        if up <= 0.0:
            up, up_from = 0.0, place + 1
        elif up > LIMIT:
            return Change("cusum", 1, up_from, place, level, _level(values[up_from : place + 1]), reference.noise)
        if down <= 0.0:
            down, down_from = 0.0, place + 1
        elif down > LIMIT:
            return Change("cusum", -1, down_from, place, level, _level(values[down_from : place + 1]), reference.noise)
        if place >= looked + SETTLE and not up and not down:
            reference = Reference.of(values[place + 1 - learn : place + 1])
            level, slope, unit = reference.level, reference.slope, 1 / reference.noise
            looked = place + 1
    return None


def page_hinkley(values: Sequence[float], sign: Literal[1, -1]) -> Change | None:
    """The first slow drift in that direction from the level of the first LEARN readings; None: there is none."""
    if len(values) <= LEARN:
        return None
    level = median(values[:LEARN])
    deviation = max(noise(values[:LEARN]), LEAST * abs(level), 1e-12)
    total, least, onset = 0.0, 0.0, LEARN
    for place in range(LEARN, len(values)):
        score = sign * (values[place] - level) / deviation
        total += (CLIP if score > CLIP else -CLIP if score < -CLIP else score) - PH_DRIFT
        if total <= least:
            least, onset = total, place + 1
        elif total - least > PH_LIMIT:
            after = _level(values[max(onset, place - LEARN) : place + 1])
            return Change("page_hinkley", sign, onset, place, level, after, deviation)
    return None
