"""One metric over a whole run, in bounded memory, without losing a spike.

Ticks fall into buckets that each store the lowest, the highest and the last value. When there are too many buckets,
they become twice as wide and neighbours merge. The newest points are stored exactly, for a closer look.
"""

from __future__ import annotations

import math
from array import array
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field, replace
from typing import Any, NamedTuple

BUCKETS = 1024
RECENT = 512
EMA_POINTS = 20
WAITING = 256
"""The most points that wait to be put into buckets. A paint finds few; a long log is folded in large pieces."""


@dataclass(slots=True)
class Bucket:
    """`low > high` if nothing finite was measured; `broken` counts NaN and infinities."""

    key: int
    low: float = math.inf
    high: float = -math.inf
    last: float = math.nan
    smooth: float = math.nan
    broken: int = 0

    def add(self, value: float, smooth: float) -> None:
        if math.isfinite(value):
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

    def column(self, x: int) -> Column:
        return Column(x, self.low, self.high, self.last, self.smooth, self.broken)


class Column(NamedTuple):
    """The values in one column of a chart."""

    x: int
    low: float
    high: float
    last: float
    smooth: float
    broken: int


@dataclass(slots=True)
class _Drawn:
    """Columns that no longer change, because a chart asks for the same ticks with every paint."""

    request: tuple[int, int, int, int]
    """First and last tick, width, ticks of a bucket."""
    used: int = 0
    """Buckets in it."""
    done: list[Column] = field(default_factory=list)
    newest: Bucket | None = None
    """The column that the next bucket may still belong to; its key is its position."""


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
        self._drawn: _Drawn | None = None

    def add(self, tick: int, value: float) -> None:
        """Add a point. A tick below the last one counts as the last one: the x-axis never goes back."""
        self.waiting.append((tick, value))
        if len(self.waiting) >= WAITING:
            self.settle()

    @property
    def count(self) -> int:
        """Points so far."""
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
        """The buckets from the first tick to the newest. A bucket's key is its tick divided by the width of a
        bucket."""
        self.settle()
        return self._buckets

    def settle(self) -> None:
        """Put waiting points into buckets."""
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
            if finite:
                if value < bucket.low:
                    bucket.low = value
                if value > bucket.high:
                    bucket.high = value
                bucket.last, bucket.smooth = value, smooth
            else:
                bucket.broken += 1
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

    def columns(self, first: int, last: int, width: int) -> list[Column]:
        """Return the ticks `first` to `last` on `width` columns, without the empty ones."""
        if width < 1 or last < first:
            return []
        self.settle()
        if not self._recent:
            return []
        if self._recent[0][0] < first or self.count <= RECENT:
            return self._exact(first, last, width)
        request = (first, last, width, self._span)
        if self._drawn is None or self._drawn.request != request or self._drawn.used >= len(self._buckets):
            self._drawn = _Drawn(request)
        drawn = self._drawn
        for bucket in self._buckets[drawn.used : -1]:
            drawn.newest = self._put(drawn.newest, bucket, drawn.done, request)
        drawn.used = len(self._buckets) - 1
        made = list(drawn.done)
        end = self._put(replace(drawn.newest) if drawn.newest else None, self._buckets[-1], made, request)
        return [*made, end.column(end.key)] if end else made

    def _put(
        self, column: Bucket | None, bucket: Bucket, done: list[Column], request: tuple[int, int, int, int]
    ) -> Bucket | None:
        """Return the current column with one more bucket, if that is among the ticks, or a new column beyond it."""
        first, last, width, span = request
        tick = bucket.key * span
        if tick > last or tick + span <= first:
            return column
        x = min(width - 1, int((max(tick, first) - first) * (width / (last - first + 1))))
        if column is not None and column.key == x:
            column.merge(bucket)
            return column
        if column is not None:
            done.append(column.column(column.key))
        return replace(bucket, key=x)

    def _exact(self, first: int, last: int, width: int) -> list[Column]:
        """Return exact columns if the recent points reach back far enough."""
        scale = width / (last - first + 1)
        made: list[Column] = []
        column: Bucket | None = None
        for tick, value, smooth in self._recent:
            if not first <= tick <= last:
                continue
            x = min(width - 1, int((tick - first) * scale))
            if column is None or column.key != x:
                if column is not None:
                    made.append(column.column(column.key))
                column = Bucket(x)
            column.add(value, smooth)
        return [*made, column.column(column.key)] if column else made

    def between(self, first: int, last: int) -> list[Bucket]:
        """Return copies of the buckets with ticks as keys: exact if the recent points reach back far enough."""
        self.settle()
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
            for b in self._buckets
            if b.key * span <= last and (b.key + 1) * span > first
        ]

    def value_at(self, tick: int) -> float:
        """Return the last value measured up to a tick, to the width of a bucket; NaN before the first."""
        buckets = self.buckets
        upto = bisect_right(buckets, tick, key=lambda bucket: bucket.key * self._span)
        return next((bucket.last for bucket in reversed(buckets[:upto]) if math.isfinite(bucket.last)), math.nan)

    def copy(self) -> Series:
        """Return a copy that does not change while this one continues."""
        self.settle()
        made = Series()
        vars(made).update(vars(self))
        made.waiting, made._drawn = [], None
        made._recent = self._recent.copy()
        made._buckets = [Bucket(b.key, b.low, b.high, b.last, b.smooth, b.broken) for b in self._buckets]
        return made

    def __getstate__(self) -> tuple[object, ...]:
        """Packed, because a run's checkpoint has tens of thousands of buckets."""
        self.settle()
        counts = array("q", [n for b in self._buckets for n in (b.key, b.broken)])
        values = array("d", [x for b in self._buckets for x in (b.low, b.high, b.last, b.smooth)])
        ticks = array("q", [point[0] for point in self._recent])
        recent = array("d", [x for point in self._recent for x in point[1:]])
        return self._count, self._last, self._last_tick, self._smooth, self._span, counts, values, ticks, recent

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self._count, self._last, self._last_tick, self._smooth, self._span, counts, values, ticks, recent = state
        self.waiting, self._drawn = [], None
        self._buckets = [
            Bucket(key, low, high, last, smooth, broken)
            for key, broken, low, high, last, smooth in zip(
                counts[::2], counts[1::2], values[::4], values[1::4], values[2::4], values[3::4], strict=True
            )
        ]
        self._recent = deque(zip(ticks, recent[::2], recent[1::2], strict=True), maxlen=RECENT)
