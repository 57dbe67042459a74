"""Recent measurements of the metrics that judge decisions, and estimates of how a change affects a metric."""

from __future__ import annotations

import math
from collections import deque
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import dataclass
from itertools import takewhile

MAX_MEASUREMENTS = 512
"""Maximum number of stored measurements per metric."""
MAX_METRICS = 128
"""Maximum number of stored metrics. Of the announced metrics with a better direction, the first are stored."""
MAX_TICK = 2**53
"""Maximum valid tick. JSON readers may not represent a larger one exactly."""
SOUND_LIMIT = 1e100
"""Absolute value beyond which a metric has diverged and its sums may overflow."""
MAD_TO_SIGMA = 1.4826
"""Factor from a median absolute deviation to the standard deviation of a normal distribution."""


def is_sound(value: float) -> bool:
    """Return whether a measurement is usable: neither NaN, nor infinite, nor beyond `SOUND_LIMIT`."""
    return abs(value) <= SOUND_LIMIT


def sound_values(values: Iterable[float]) -> tuple[float, ...]:
    return tuple(filter(is_sound, values))


def has_diverged(values: Sequence[float]) -> bool:
    """Return whether the newest of these measurements is unusable."""
    return bool(values) and not is_sound(values[-1])


class Measurements:
    """Measurements of each watched metric as (tick, step, value), oldest first, including unsound values."""

    def __init__(self, names: Iterable[str] = ()) -> None:
        self._by_metric: dict[str, deque[tuple[int, int, float]]] = {
            name: deque(maxlen=MAX_MEASUREMENTS) for name in list(names)[:MAX_METRICS]
        }

    def __contains__(self, name: str) -> bool:
        return name in self._by_metric

    @property
    def names(self) -> Collection[str]:
        """The names of the watched metrics."""
        return self._by_metric.keys()

    def add(self, tick: int, step: int, metrics: Mapping[str, float]) -> None:
        """Store an observation. The last value of a tick replaces earlier ones."""
        for name, stored in self._by_metric.items():
            value = metrics.get(name)
            if value is None:
                continue
            if stored and stored[-1][0] == tick:
                stored.pop()
            stored.append((tick, step, value))

    def at_ticks(self, name: str, after: int, until: int) -> list[float]:
        """Return the values at ticks with `after` < tick ≤ `until`."""
        newest_first = takewhile(lambda entry: entry[0] > after, reversed(self._by_metric.get(name, ())))
        return [value for tick, _, value in newest_first if tick <= until][::-1]

    def at_steps(self, name: str, after: float, until: float, *, since: int, until_tick: int) -> list[float]:
        """Return the values at steps with `after` < step ≤ `until` and ticks with `since` < tick ≤ `until_tick`.

        A step that the run passed twice in that time has two values."""
        return [
            value
            for tick, step, value in self._by_metric.get(name, ())
            if after < step <= until and since < tick <= until_tick
        ]


@dataclass(frozen=True, slots=True)
class Effect:
    """The means of a metric before and after a change.

    `gain` is the difference in the better direction, and `noise` its standard error."""

    before: float
    after: float
    gain: float
    noise: float


def measure_effect(before: Sequence[float], after: Sequence[float], sign: int, baseline: Sequence[float]) -> Effect:
    """Compare the measurements before and after a change. `sign` is 1 if higher is better, else −1.

    The spread of one measurement is estimated from `baseline`, measurements that are also from before the change.
    Otherwise a change could hide its harm by making the metric noisy."""
    mean_before, mean_after = mean(before), mean(after)
    noise = sigma(baseline) * math.sqrt(1 / len(before) + 1 / len(after))
    return Effect(mean_before, mean_after, (mean_after - mean_before) * sign, noise)


def mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def median(values: Sequence[float]) -> float:
    ordered, half = sorted(values), len(values) // 2
    return ordered[half] if len(ordered) % 2 else ordered[half - 1] / 2 + ordered[half] / 2  # halves cannot overflow


def sigma(values: Sequence[float]) -> float:
    """Return the spread of one measurement, estimated from the median absolute deviation (Hampel 1974).

    A single outlier hardly affects this deviation. But if more than half of the values are equal, it is 0, and any
    change would look certain. So the standard deviation is used in that case. Constant values have a spread of 0."""
    middle = median(values)
    robust_spread = MAD_TO_SIGMA * median([abs(value - middle) for value in values])
    if robust_spread > 0 or len(values) < 2:
        return robust_spread
    centre = mean(values)
    return math.sqrt(math.fsum((value - centre) * (value - centre) for value in values) / (len(values) - 1))
