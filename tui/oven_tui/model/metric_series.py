"""Stores one metric over a whole run in bounded memory, without losing spikes.

Ticks are grouped into buckets that store their minimum, maximum and last value. When there are too many buckets, their
width doubles and neighbours are merged. The newest points are also stored exactly.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from collections.abc import Iterable
from dataclasses import dataclass

MAX_BUCKETS = 1024
EXACT_POINTS = 512  # number of the newest points that are also stored exactly
EMA_POINTS = 20  # number of points that the moving average roughly covers
MAX_WAITING = 256
"""Maximum points that wait to be added to buckets. Adding them in batches makes reading a long log faster."""


@dataclass(slots=True)
class Bucket:
    """The values of one tick, a range of ticks, or a column of a chart, which `key` identifies. If there is no finite
    value, `low` is above `high`. `smooth` is the moving average, and `broken_count` counts NaN and infinities."""

    key: int
    low: float = math.inf
    high: float = -math.inf
    last: float = math.nan
    smooth: float = math.nan
    broken_count: int = 0

    def __reduce__(self) -> tuple[type[Bucket], tuple[float, ...]]:
        """Make pickling faster, because a player's checkpoint contains tens of thousands of buckets."""
        return Bucket, (self.key, self.low, self.high, self.last, self.smooth, self.broken_count)

    def with_key(self, key: int) -> Bucket:
        return Bucket(key, self.low, self.high, self.last, self.smooth, self.broken_count)

    def add(self, value: float, smooth: float) -> None:
        if value - value == 0.0:  # finite; faster than math.isfinite
            if value < self.low:
                self.low = value
            if value > self.high:
                self.high = value
            self.last, self.smooth = value, smooth
        else:
            self.broken_count += 1

    def merge(self, later: Bucket) -> None:
        if later.low < self.low:
            self.low = later.low
        if later.high > self.high:
            self.high = later.high
        self.broken_count += later.broken_count
        if later.low <= later.high:
            self.last, self.smooth = later.last, later.smooth


def merge_to_columns(
    buckets: Iterable[Bucket], first: int, last: int, width: int, span: int = 1, merged: list[Bucket] | None = None
) -> list[Bucket]:
    """Merge the buckets between two ticks to at most `width` columns. Each bucket is `span` ticks wide. `merged` are
    the columns of earlier buckets, to which these are added."""
    merged = [] if merged is None else merged
    if width < 1 or last < first:
        return merged
    scale = width / (last - first + 1)
    for bucket in buckets:
        tick = bucket.key * span
        if tick > last or tick + span <= first:
            continue
        x = min(width - 1, int((max(tick, first) - first) * scale))
        if merged and merged[-1].key == x:
            merged[-1].merge(bucket)
        else:
            merged.append(bucket.with_key(x))
    return merged


class Series:
    """The values of one metric. Add points in log order, and read them as columns of a chart. New points wait until the
    next read, because adding them to buckets in batches is three times as fast."""

    def __init__(self) -> None:
        self.waiting: list[tuple[int, float]] = []
        """Points that are not in buckets yet. Appending to this list is faster than `add`, but then the caller must
        call `settle` after at most a few hundred points."""
        self._count = 0
        self._last = math.nan
        self._last_tick = 0
        self._smooth = math.nan
        self._span = 1
        self._buckets: list[Bucket] = []
        self._recent: deque[tuple[int, float, float]] = deque(maxlen=EXACT_POINTS)

    def add(self, tick: int, value: float) -> None:
        """Add a point. A tick that is lower than the newest tick is replaced by it, so that ticks never decrease."""
        self.waiting.append((tick, value))
        if len(self.waiting) >= MAX_WAITING:
            self.settle()

    @property
    def count(self) -> int:
        return self._count + len(self.waiting)

    @property
    def last(self) -> float:
        """The newest value, finite or not, or NaN before the first."""
        return self.waiting[-1][1] if self.waiting else self._last

    @property
    def last_tick(self) -> int:
        """The tick of the newest point, or 0 before the first."""
        self.settle()
        return self._last_tick

    @property
    def buckets(self) -> list[Bucket]:
        """The buckets from the first tick to the newest. Keys are ticks divided by the width of a bucket."""
        self.settle()
        return self._buckets

    def settle(self) -> None:
        """Move the waiting points to buckets."""
        waiting = self.waiting
        if not waiting:
            return
        newest = self._last_tick if self._count else waiting[0][0]
        smooth, span, add_recent = self._smooth, self._span, self._recent.append
        bucket = self._buckets[-1] if self._buckets else Bucket(-1)
        for tick, value in waiting:
            if tick < newest:
                tick = newest
            newest = tick
            is_finite = value - value == 0.0
            if is_finite:
                smooth = smooth + (value - smooth) * 2 / (EMA_POINTS + 1) if smooth - smooth == 0.0 else value
            add_recent((tick, value, smooth))
            if tick // span != bucket.key:
                bucket = Bucket(tick // span)
                self._buckets.append(bucket)
                if len(self._buckets) > MAX_BUCKETS:
                    self._widen()
                    span, bucket = self._span, self._buckets[-1]
            if not is_finite:
                bucket.broken_count += 1
                continue
            if value < bucket.low:  # Bucket.add inlined, because the calls would double the time for a long log
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
        """Return the ticks from `first` to `last` in at most `width` columns. Empty columns are omitted."""
        buckets, span = self.choose_buckets(first)
        return merge_to_columns(buckets, first, last, width, span)

    def points(self) -> list[Bucket]:
        """Return copies of all buckets with ticks as keys."""
        buckets, span = self.choose_buckets(0)
        return [bucket.with_key(bucket.key * span) for bucket in buckets]

    def choose_buckets(self, first: int) -> tuple[list[Bucket], int]:
        """Return the buckets from `first` on, and their width. Use the exact points if buckets are less precise, and if
        the points go back far enough."""
        self.settle()
        has_all_points = self.count <= EXACT_POINTS or (bool(self._recent) and self._recent[0][0] < first)
        if self._span == 1 or not has_all_points:
            return self._buckets, self._span
        points = []
        for tick, value, smooth in self._recent:
            points.append(Bucket(tick))
            points[-1].add(value, smooth)
        return points, 1

    def value_at(self, tick: int) -> float:
        """Return the last finite value up to a tick, to the precision of a bucket, or NaN if there is none."""
        buckets = self.buckets
        end = bisect_right(buckets, tick, key=lambda bucket: bucket.key * self._span)
        return next((bucket.last for bucket in reversed(buckets[:end]) if math.isfinite(bucket.last)), math.nan)


class ColumnCache:
    """The columns of one chart. Only the buckets that are new since the last call are merged."""

    def __init__(self) -> None:
        self._series: Series | None = None
        self._range: tuple[int, ...] = ()
        """First and last tick, number of columns, and width of a bucket."""
        self._columns: list[Bucket] = []
        self._merged_count = 0
        """Number of buckets in `_columns`. The newest bucket is not among them, because it may still change."""

    def columns(self, series: Series, first: int, last: int, width: int) -> list[Bucket]:
        """Return the same columns as Series.columns."""
        buckets, span = series.choose_buckets(first)
        if buckets is not series.buckets:
            return merge_to_columns(buckets, first, last, width, span)
        if self._series is not series or self._range != (first, last, width, span):
            self._series, self._range = series, (first, last, width, span)
            self._columns, self._merged_count = [], 0
        merge_to_columns(buckets[self._merged_count : -1], first, last, width, span, self._columns)
        self._merged_count = max(0, len(buckets) - 1)
        columns = list(self._columns)
        if columns:
            columns[-1] = columns[-1].with_key(columns[-1].key)  # a copy, to which the newest bucket may be added
        return merge_to_columns(buckets[-1:], first, last, width, span, columns)
