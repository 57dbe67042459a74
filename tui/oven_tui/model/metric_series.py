"""One metric over a whole run, in bounded memory, without losing a spike.

Ticks fall into buckets that each store the lowest, the highest and the last value. When there are too many buckets,
they become twice as wide and neighbours merge. The newest points are stored exactly, for a closer look.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

BUCKETS = 1024
RECENT = 512
EMA_POINTS = 20
WAITING = 256
"""The most points that wait to be put into buckets. A paint finds few; a long log is folded in large pieces."""


@dataclass(slots=True)
class Bucket:
    """Values that share a key: a tick, a tick divided by the width of a bucket, or a column of a chart.

    `low > high` if nothing finite was measured; `broken` counts NaN and infinities.
    """

    key: int
    low: float = math.inf
    high: float = -math.inf
    last: float = math.nan
    smooth: float = math.nan
    broken: int = 0

    def __reduce__(self) -> tuple[type[Bucket], tuple[float, ...]]:
        """Pickle faster than by default: a checkpoint of a run has tens of thousands."""
        return Bucket, (self.key, self.low, self.high, self.last, self.smooth, self.broken)

    def with_key(self, key: int) -> Bucket:
        """Return a copy with another key."""
        return Bucket(key, self.low, self.high, self.last, self.smooth, self.broken)

    def add(self, value: float, smooth: float) -> None:
        if value - value == 0.0:
            if value < self.low:
                self.low = value
            if value > self.high:
                self.high = value
            self.last, self.smooth = value, smooth
        else:
            self.broken += 1

    def merge(self, later: Bucket) -> None:
        if later.low < self.low:
            self.low = later.low
        if later.high > self.high:
            self.high = later.high
        self.broken += later.broken
        if later.low <= later.high:
            self.last, self.smooth = later.last, later.smooth


def columns(buckets: Iterable[Bucket], first: int, last: int, width: int, span: int = 1) -> list[Bucket]:
    """Return the buckets of `span` ticks each between two ticks, merged to at most `width` columns."""
    if width < 1 or last < first:
        return []
    scale = width / (last - first + 1)
    made: list[Bucket] = []
    for bucket in buckets:
        tick = bucket.key * span
        if tick > last or tick + span <= first:
            continue
        x = min(width - 1, int((max(tick, first) - first) * scale))
        if made and made[-1].key == x:
            made[-1].merge(bucket)
        else:
            made.append(bucket.with_key(x))
    return made


class Series:
    """Add (tick, value) in the log's order, and read columns. `last` is the newest value, finite or not.

    Up to WAITING points wait until the next read, because a point in a batch costs a third.
    """

    def __init__(self) -> None:
        self.waiting: list[tuple[int, float]] = []
        """Points that are not in buckets yet. Code that appends to it directly, which is cheaper than `add`, calls
        `settle` after at most some hundred points."""
        self._count = 0
        self._last = math.nan
        self._last_tick = 0
        self._smooth = math.nan
        self._span = 1
        self._buckets: list[Bucket] = []
        self._recent: deque[tuple[int, float, float]] = deque(maxlen=RECENT)

    def add(self, tick: int, value: float) -> None:
        """Add a point. A tick below the last one counts as the last one: the x-axis never goes back."""
        self.waiting.append((tick, value))
        if len(self.waiting) >= WAITING:
            self.settle()

    @property
    def count(self) -> int:
        return self._count + len(self.waiting)

    @property
    def last(self) -> float:
        """The newest value, finite or not; NaN before the first."""
        return self.waiting[-1][1] if self.waiting else self._last

    @property
    def last_tick(self) -> int:
        """The tick of the newest point; 0 before the first."""
        self.settle()
        return self._last_tick

    @property
    def buckets(self) -> list[Bucket]:
        """The buckets from the first tick to the newest. Keys are ticks divided by the width of a bucket."""
        self.settle()
        return self._buckets

    def settle(self) -> None:
        waiting = self.waiting
        if not waiting:
            return
        newest = self._last_tick if self._count else waiting[0][0]
        smooth, span, recent = self._smooth, self._span, self._recent.append
        bucket = self._buckets[-1] if self._buckets else Bucket(-1)
        for tick, value in waiting:
            if tick < newest:
                tick = newest
            newest = tick
            finite = value - value == 0.0
            if finite:
                smooth = smooth + (value - smooth) * 2 / (EMA_POINTS + 1) if smooth - smooth == 0.0 else value
            recent((tick, value, smooth))
            if tick // span != bucket.key:
                bucket = Bucket(tick // span)
                self._buckets.append(bucket)
                if len(self._buckets) > BUCKETS:
                    self._widen()
                    span, bucket = self._span, self._buckets[-1]
            if not finite:
                bucket.broken += 1
                continue
            if value < bucket.low:  # Bucket.add without the call, which would double the time of a long log
                bucket.low = value
            if value > bucket.high:
                bucket.high = value
            bucket.last, bucket.smooth = value, smooth
        self._smooth, self._last, self._last_tick = smooth, waiting[-1][1], newest
        self._count += len(waiting)
        waiting.clear()

    def _widen(self) -> None:
        self._span *= 2
        merged: list[Bucket] = []
        for bucket in self._buckets:
            bucket.key //= 2
            if merged and merged[-1].key == bucket.key:
                merged[-1].merge(bucket)
            else:
                merged.append(bucket)
        self._buckets = merged

    def columns(self, first: int, last: int, width: int) -> list[Bucket]:
        """Return the ticks `first` to `last` on `width` columns, without the empty ones."""
        buckets, span = self._source(first)
        return columns(buckets, first, last, width, span)

    def points(self) -> list[Bucket]:
        """Return copies of all buckets with ticks as keys."""
        buckets, span = self._source(0)
        return [bucket.with_key(bucket.key * span) for bucket in buckets]

    def _source(self, first: int) -> tuple[list[Bucket], int]:
        """Return buckets and their width: exact points if the recent ones reach back far enough."""
        self.settle()
        if not self._recent or not (self._recent[0][0] < first or self.count <= RECENT):
            return self._buckets, self._span
        points = []
        for tick, value, smooth in self._recent:
            points.append(Bucket(tick))
            points[-1].add(value, smooth)
        return points, 1

    def value_at(self, tick: int) -> float:
        """Return the last value measured up to a tick, to the width of a bucket; NaN before the first."""
        buckets = self.buckets
        upto = bisect_right(buckets, tick, key=lambda bucket: bucket.key * self._span)
        return next((bucket.last for bucket in reversed(buckets[:upto]) if math.isfinite(bucket.last)), math.nan)
