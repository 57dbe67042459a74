"""An overlay of two to four runs: their metrics on one axis, by step or by tick, with a glyph and a colour each."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from oven_tui.model.braille_chart import Run, Style
from oven_tui.model.cell_text import glyph
from oven_tui.model.metric_series import Bucket, columns
from oven_tui.model.monitor_view import MonitorView

MOST = 4
"""The most runs in an overlay. More curves in one chart cannot be distinguished."""
By: TypeAlias = Literal["step", "tick"]
"""The x-axis: steps compare what was trained on, ticks what was measured, rolled-back steps included."""


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
        points = view.steps.points() if by == "step" else []
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

    def columns(self, view: MonitorView, metric: str, first: int, last: int, width: int) -> list[Bucket]:
        """Return a metric from `first` to `last` on `width` columns. By step, steps that a rollback discarded are
        omitted: later values take their place."""
        series = view.series.get(metric)
        if series is None:
            return []
        if self._by == "tick":
            return series.columns(first, last, width)
        buckets: list[Bucket] = []
        for bucket in series.points():
            bucket.key = self.position(bucket.key)
            while buckets and buckets[-1].key > bucket.key:
                buckets.pop()
            if buckets and buckets[-1].key == bucket.key:
                buckets[-1].merge(bucket)
            else:
                buckets.append(bucket)
        return columns(buckets, first, last, width)


def charted(runs: Sequence[Overlaid]) -> list[str]:
    """Return all curves of any run: in the order of the first run, and those that several runs have first."""
    names = list(dict.fromkeys(name for run in runs for name in run.view.charted()))
    have = {name: sum(name in run.view.series for run in runs) for name in names}
    return sorted(names, key=lambda name: -(have[name] > 1))


def style(runs: Sequence[Overlaid], metric: str) -> Style:
    """Return the style in the first run that has the metric."""
    return next((run.view.style(metric) for run in runs if metric in run.view.series), "noisy")
