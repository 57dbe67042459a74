"""One metric over a whole run, in bounded memory, without losing a spike.

Ticks fall into buckets that each keep the least, the greatest and the last value. When there are too many buckets, they
become twice as wide and neighbours merge. The newest points are kept as they came, for a closer look.
"""

from __future__ import annotations

import math
from collections import deque
from dataclasses import dataclass
from typing import NamedTuple

BUCKETS = 1024
RECENT = 512
EMA_POINTS = 20


@dataclass(slots=True)
class Bucket:
    """`low > high` where nothing finite was measured; `broken` counts NaN and infinities."""

    key: int
    low: float = math.inf
    high: float = -math.inf
    last: float = math.nan
    smooth: float = math.nan
    broken: int = 0

    def add(self, value: float, smooth: float) -> None:
        if math.isfinite(value):
            self.low, self.high, self.last = min(self.low, value), max(self.high, value), value
            self.smooth = smooth
        else:
            self.broken += 1

    def merge(self, later: Bucket) -> None:
        self.low, self.high = min(self.low, later.low), max(self.high, later.high)
        self.broken += later.broken
        if later.low <= later.high:
            self.last, self.smooth = later.last, later.smooth


class Column(NamedTuple):
    """What falls on one column of a chart."""

    x: int
    low: float
    high: float
    last: float
    smooth: float
    broken: int


class Series:
    """Feed it (tick, value) in the log's order; read it in columns. `last` is the newest value, finite or not."""

    def __init__(self) -> None:
        self.count = 0
        self.last = math.nan
        self.last_tick = 0
        self._smooth = math.nan
        self._span = 1
        self.buckets: list[Bucket] = []
        self._recent: deque[tuple[int, float, float]] = deque(maxlen=RECENT)

    def add(self, tick: int, value: float) -> None:
        """A tick below the last one counts as the last one: the x-axis never goes back."""
        if not self.count:
            self.last_tick = tick
        self.last_tick = max(self.last_tick, tick)
        self.count += 1
        self.last = value
        if math.isfinite(value):
            before = self._smooth if math.isfinite(self._smooth) else value
            self._smooth = before + (value - before) * 2 / (EMA_POINTS + 1)
        self._recent.append((self.last_tick, value, self._smooth))
        key = self.last_tick // self._span
        if not self.buckets or self.buckets[-1].key != key:
            self.buckets.append(Bucket(key))
        self.buckets[-1].add(value, self._smooth)
        while len(self.buckets) > BUCKETS:
            self._widen()

    def _widen(self) -> None:
        self._span *= 2
        merged: list[Bucket] = []
        for bucket in self.buckets:
            bucket.key //= 2
            if merged and merged[-1].key == bucket.key:
                merged[-1].merge(bucket)
            else:
                merged.append(bucket)
        self.buckets = merged

    def columns(self, first: int, last: int, width: int) -> list[Column]:
        """The ticks `first` to `last` on `width` columns, without the empty ones."""
        if width < 1 or last < first:
            return []
        scale = width / (last - first + 1)
        found: list[Bucket] = []
        for bucket in self.between(first, last):
            x = min(width - 1, int((max(bucket.key, first) - first) * scale))
            if found and found[-1].key == x:
                found[-1].merge(bucket)
            else:
                bucket.key = x
                found.append(bucket)
        return [Column(b.key, b.low, b.high, b.last, b.smooth, b.broken) for b in found]

    def between(self, first: int, last: int) -> list[Bucket]:
        """Copies of the buckets whose keys are ticks: exact ones where the recent points reach back far enough."""
        if self._recent and (self._recent[0][0] < first or self.count <= RECENT):
            exact = []
            for tick, value, smooth in self._recent:
                if first <= tick <= last:
                    exact.append(Bucket(tick))
                    exact[-1].add(value, smooth)
            return exact
        span = self._span
        return [
            Bucket(b.key * span, b.low, b.high, b.last, b.smooth, b.broken)
            for b in self.buckets
            if b.key * span <= last and (b.key + 1) * span > first
        ]

    def at(self, tick: int) -> float:
        """The last value measured up to a tick, to the width of a bucket; NaN before the first."""
        found = math.nan
        for bucket in self.buckets:
            if bucket.key * self._span > tick:
                break
            found = bucket.last if math.isfinite(bucket.last) else found
        return found

    def copy(self) -> Series:
        """One that stays as it is while this one continues."""
        made = Series()
        vars(made).update(vars(self))
        made._recent = self._recent.copy()
        made.buckets = [Bucket(b.key, b.low, b.high, b.last, b.smooth, b.broken) for b in self.buckets]
        return made
