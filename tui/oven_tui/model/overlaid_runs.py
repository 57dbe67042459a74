"""An overlay of two to four runs: their metrics on one axis, by step or by tick, with a glyph and a colour each."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from oven_tui.model.braille_chart import Bounds, Mark, Run, Style, bounds
from oven_tui.model.cell_text import glyph
from oven_tui.model.metric_series import Bucket, Column
from oven_tui.model.monitor_view import MonitorView

MOST = 4
"""The most runs in an overlay. More curves in one chart cannot be told apart."""
By: TypeAlias = Literal["step", "tick"]
"""The x-axis: steps compare what was trained on, ticks what was measured, rolled-back steps included."""

_DOTS = ((0x01, 0x02, 0x04, 0x40), (0x08, 0x10, 0x20, 0x80))
_END = 1 << 60


@dataclass
class Overlaid:
    """One run of an overlay. It keeps its position, and with it its glyph and its colour."""

    name: str
    index: int
    view: MonitorView

    @property
    def sign(self) -> Run:
        return glyph(self.index)


class Axis:
    """The positions of a run's ticks on the shared axis, made for each paint."""

    def __init__(self, view: MonitorView, by: By) -> None:
        self._by = by
        points = view.steps.between(0, _END) if by == "step" else []
        self._ticks = [point.key for point in points]
        self._steps = [int(point.last) if math.isfinite(point.last) else 0 for point in points]
        self.end = view.run.step if by == "step" else view.run.tick
        """The run's newest position on the axis."""

    def position(self, tick: int) -> int:
        """Return a tick's step, that of the last observation up to it; or the tick itself."""
        if self._by == "tick" or not self._ticks:
            return tick
        index = bisect_right(self._ticks, tick) - 1
        return self._steps[max(0, index)]

    def columns(self, view: MonitorView, metric: str, first: int, last: int, width: int) -> list[Column]:
        """Return a metric from `first` to `last` on `width` columns. By step, steps that a rollback discarded are
        omitted: later values take their place."""
        series = view.series.get(metric)
        if series is None or width < 1 or last < first:
            return []
        if self._by == "tick":
            return series.columns(first, last, width)
        scale, buckets = width / (last - first + 1), list[Bucket]()
        for bucket in series.between(0, _END):
            step = self.position(bucket.key)
            while buckets and buckets[-1].key > step:
                buckets.pop()
            if buckets and buckets[-1].key == step:
                buckets[-1].merge(bucket)
            else:
                bucket.key = step
                buckets.append(bucket)
        made: list[Bucket] = []
        for bucket in buckets:
            if not first <= bucket.key <= last:
                continue
            bucket.key = min(width - 1, int((bucket.key - first) * scale))
            if made and made[-1].key == bucket.key:
                made[-1].merge(bucket)
            else:
                made.append(bucket)
        return [Column(b.key, b.low, b.high, b.last, b.smooth, b.broken) for b in made]


def charted(runs: Sequence[Overlaid]) -> list[str]:
    """Return all curves of any run: in the order of the first run, and those that several runs have first."""
    names = list(dict.fromkeys(name for run in runs for name in run.view.charted()))
    have = {name: sum(name in run.view.series for run in runs) for name in names}
    return sorted(names, key=lambda name: -(have[name] > 1))


def style(runs: Sequence[Overlaid], metric: str) -> Style:
    """Return the style in the first run that has the metric."""
    return next((run.view.style(metric) for run in runs if metric in run.view.series), "noisy")


def curve(columns: Sequence[Column], kind: Style) -> list[Column]:
    """Return the columns to draw: the average of a noisy metric, otherwise the value itself."""
    if kind != "noisy":
        return list(columns)
    return [
        column._replace(low=column.smooth, high=column.smooth, last=column.smooth)
        if math.isfinite(column.smooth)
        else column
        for column in columns
    ]


def scale_of(curves: Iterable[Sequence[Column]], kind: Style) -> Bounds:
    """Return bounds around all curves."""
    return bounds([column for columns in curves for column in columns], kind)


def draw(
    curves: Sequence[tuple[Sequence[Column], str]],
    scale: Bounds,
    kind: Style,
    marks: dict[int, Mark],
    width: int,
    height: int,
) -> list[list[Run]]:
    """Return `height` rows of `width` cells with a line per curve in its own colour. If two meet in a cell, their dots
    are joined in the colour of the later one."""
    dots = height * 4 - 1
    cells: dict[tuple[int, int], tuple[int, str]] = {}

    def row_of(value: float) -> int:
        return dots - round(scale.height(value) * dots)

    def put(x: int, y: int, colour: str) -> None:
        if 0 <= x < 2 * width and 0 <= y <= dots:
            drawn = cells.get((x >> 1, y >> 2), (0, colour))[0]
            cells[x >> 1, y >> 2] = (drawn | _DOTS[x & 1][y & 3], colour)

    for columns, colour in curves:
        before: tuple[int, int] | None = None
        for column in columns:
            if column.low > column.high:
                before = None
                continue
            here = (column.x, row_of(column.last))
            for y in range(row_of(column.high), row_of(column.low) + 1):
                put(column.x, y, colour)
            for x, y in _joined(before, here, kind):
                put(x, y, colour)
            before = None if column.broken else here
    return [_row(cells, marks if y == 0 else {}, y, width) for y in range(height)]


def _joined(before: tuple[int, int] | None, here: tuple[int, int], kind: Style) -> Iterable[tuple[int, int]]:
    x1, y1 = here
    x0, y0 = before or here
    if kind == "set":
        yield from ((x, y0) for x in range(x0, x1 + 1))
        yield from ((x1, y) for y in range(min(y0, y1), max(y0, y1) + 1))
        return
    steps = max(x1 - x0, abs(y1 - y0), 1)
    for step in range(steps + 1):
        yield x0 + round((x1 - x0) * step / steps), y0 + round((y1 - y0) * step / steps)


def _row(cells: dict[tuple[int, int], tuple[int, str]], marks: dict[int, Mark], y: int, width: int) -> list[Run]:
    runs: list[tuple[list[str], str]] = []
    for x in range(width):
        if x in marks:
            char, kind = marks[x].glyph, marks[x].kind
        elif (x, y) in cells:
            bits, kind = cells[x, y]
            char = chr(0x2800 | bits)
        else:
            char, kind = " ", "blank"
        if runs and runs[-1][1] == kind:
            runs[-1][0].append(char)
        else:
            runs.append(([char], kind))
    return [("".join(chars), kind) for chars, kind in runs]
