"""One metric over a whole run, in bounded memory, without losing a spike.

Ticks fall into buckets that each keep the least, the greatest and the last value. When there are too many buckets, they
become twice as wide and neighbours merge. The newest points are kept as they came, for a closer look. A run publishes
many metrics and shows four: points are put into buckets when somebody looks, or when enough of them wait.
"""

from __future__ import annotations

import math
from bisect import bisect_right
from collections import deque
from dataclasses import dataclass, field, replace
from typing import NamedTuple

BUCKETS = 1024
RECENT = 512
WAITING = 256
"""Points that wait for their buckets at most; many at once cost a fifth of one at a time."""
EMA_POINTS = 20
SHARE = 2 / (EMA_POINTS + 1)
"""Of the newest point in the moving average."""


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
    """What falls on one column of a chart."""

    x: int
    low: float
    high: float
    last: float
    smooth: float
    broken: int


@dataclass(slots=True)
class _Drawn:
    """Columns that buckets made which no longer change: a chart asks for the same ticks again with every paint."""

    asked: tuple[int, int, int, int]
    """First and last tick, width, ticks of a bucket."""
    taken: int = 0
    """Buckets that are in it."""
    done: list[Column] = field(default_factory=list)
    newest: Bucket | None = None
    """The column that the next bucket may still be a part of; its key is its place."""


class Series:
    """Feed it (tick, value) in the log's order; read it in columns. `last` is the newest value, finite or not."""

    def __init__(self) -> None:
        self.count = 0
        self.last = math.nan
        self.last_tick = 0
        self._smooth = math.nan
        self._span = 1
        self._buckets: list[Bucket] = []
        self._recent: deque[tuple[int, float, float]] = deque(maxlen=RECENT)
        self._waiting: list[tuple[int, float]] = []
        self._drawn: _Drawn | None = None

    @property
    def buckets(self) -> list[Bucket]:
        """At most BUCKETS, by their ticks."""
        self._settle()
        return self._buckets

    def add(self, tick: int, value: float) -> None:
        """A tick below the last one counts as the last one: the x-axis never goes back."""
        if tick > self.last_tick or not self.count:
            self.last_tick = tick
        self.count += 1
        self.last = value
        self._waiting.append((self.last_tick, value))
        if len(self._waiting) >= WAITING:
            self._settle()

    def _settle(self) -> None:
        """Put what waits into its buckets."""
        if not self._waiting:
            return
        buckets, recent, smooth, span = self._buckets, self._recent, self._smooth, self._span
        finite = math.isfinite
        newest = buckets[-1] if buckets else None
        for tick, value in self._waiting:
            if finite(value):
                smooth = smooth + (value - smooth) * SHARE if finite(smooth) else value
            recent.append((tick, value, smooth))
            key = tick // span
            if newest is None or newest.key != key:
                newest = Bucket(key)
                buckets.append(newest)
            newest.add(value, smooth)
            if len(buckets) > BUCKETS:
                buckets, span = _widened(buckets, span)
                newest = buckets[-1]
        self._buckets, self._smooth, self._span = buckets, smooth, span
        self._waiting.clear()

    def columns(self, first: int, last: int, width: int) -> list[Column]:
        """The ticks `first` to `last` on `width` columns, without the empty ones."""
        if width < 1 or last < first:
            return []
        self._settle()
        if not self._recent:
            return []
        if self._recent[0][0] < first or self.count <= RECENT:
            return self._exact(first, last, width)
        asked = (first, last, width, self._span)
        if self._drawn is None or self._drawn.asked != asked or self._drawn.taken >= len(self._buckets):
            self._drawn = _Drawn(asked)
        drawn = self._drawn
        for bucket in self._buckets[drawn.taken : -1]:
            drawn.newest = self._put(drawn.newest, bucket, drawn.done, asked)
        drawn.taken = len(self._buckets) - 1
        made = list(drawn.done)
        end = self._put(replace(drawn.newest) if drawn.newest else None, self._buckets[-1], made, asked)
        return [*made, end.column(end.key)] if end else made

    def _put(
        self, column: Bucket | None, bucket: Bucket, done: list[Column], asked: tuple[int, int, int, int]
    ) -> Bucket | None:
        """The column under way with one more bucket in it, if that is among the ticks; a new one where it is beyond."""
        first, last, width, span = asked
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
        """Where the recent points reach back far enough."""
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

    def at(self, tick: int) -> float:
        """The last value measured up to a tick, to the width of a bucket; NaN before the first."""
        buckets = self.buckets
        upto = bisect_right(buckets, tick, key=lambda bucket: bucket.key * self._span)
        return next((bucket.last for bucket in reversed(buckets[:upto]) if math.isfinite(bucket.last)), math.nan)

    def copy(self) -> Series:
        """One that stays as it is while this one continues."""
        self._settle()
        made = Series()
        vars(made).update(vars(self))
        made._recent, made._waiting, made._drawn = self._recent.copy(), [], None
        made._buckets = [replace(bucket) for bucket in self._buckets]
        return made


def _widened(buckets: list[Bucket], span: int) -> tuple[list[Bucket], int]:
    """Buckets twice as wide, and their new width."""
    merged: list[Bucket] = []
    for bucket in buckets:
        bucket.key //= 2
        if merged and merged[-1].key == bucket.key:
            merged[-1].merge(bucket)
        else:
            merged.append(bucket)
    return merged, span * 2
