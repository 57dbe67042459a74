"""One metric over a whole run, in bounded memory, without losing a spike.

Ticks fall into buckets that each keep the least, the greatest and the last value. When there are too many buckets, they
become twice as wide and neighbours merge. The newest points are kept as they came, for a closer look.
"""

from __future__ import annotations

import math
from array import array
from collections import deque
from dataclasses import dataclass
from typing import Any, NamedTuple

BUCKETS = 1024
RECENT = 512
EMA_POINTS = 20
WAITING = 256
"""Points that wait at most to be put into buckets: a paint finds few, a long log is folded in large pieces."""


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
    """Feed it (tick, value) in the log's order; read it in columns. `last` is the newest value, finite or not.

    What is fed waits, up to WAITING points, until somebody reads: in one go a point costs a third.
    """

    def __init__(self) -> None:
        self.count = 0
        self.last = math.nan
        self.last_tick = 0
        self._waiting: list[tuple[int, float]] = []
        self._smooth = math.nan
        self._span = 1
        self._buckets: list[Bucket] = []
        self._recent: deque[tuple[int, float, float]] = deque(maxlen=RECENT)

    def add(self, tick: int, value: float) -> None:
        """A tick below the last one counts as the last one: the x-axis never goes back."""
        if tick > self.last_tick or not self.count:
            self.last_tick = tick
        self.count += 1
        self.last = value
        self._waiting.append((self.last_tick, value))
        if len(self._waiting) >= WAITING:
            self._take()

    @property
    def buckets(self) -> list[Bucket]:
        """From the first tick to the newest; a bucket's key is its tick by the width of a bucket."""
        self._take()
        return self._buckets

    def _take(self) -> None:
        """Put what waits where it belongs."""
        if not self._waiting:
            return
        smooth, span, recent = self._smooth, self._span, self._recent.append
        bucket = self._buckets[-1] if self._buckets else Bucket(-1)
        for tick, value in self._waiting:
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
        self._smooth = smooth
        self._waiting.clear()

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
        self._take()
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
        self._take()
        made = Series()
        vars(made).update(vars(self))
        made._waiting = []
        made._recent = self._recent.copy()
        made._buckets = [Bucket(b.key, b.low, b.high, b.last, b.smooth, b.broken) for b in self._buckets]
        return made

    def __getstate__(self) -> tuple[object, ...]:
        """Packed, since a checkpoint of a run has tens of thousands of buckets."""
        self._take()
        counts = array("q", [n for b in self._buckets for n in (b.key, b.broken)])
        values = array("d", [x for b in self._buckets for x in (b.low, b.high, b.last, b.smooth)])
        ticks = array("q", [point[0] for point in self._recent])
        recent = array("d", [x for point in self._recent for x in point[1:]])
        return self.count, self.last, self.last_tick, self._smooth, self._span, counts, values, ticks, recent

    def __setstate__(self, state: tuple[Any, ...]) -> None:
        self.count, self.last, self.last_tick, self._smooth, self._span, counts, values, ticks, recent = state
        self._waiting = []
        self._buckets = [
            Bucket(key, low, high, last, smooth, broken)
            for key, broken, low, high, last, smooth in zip(
                counts[::2], counts[1::2], values[::4], values[1::4], values[2::4], values[3::4], strict=True
            )
        ]
        self._recent = deque(zip(ticks, recent[::2], recent[1::2], strict=True), maxlen=RECENT)
