"""Combines two to four runs in an overlay. Their metrics share an axis, and each run has its own glyph and colour."""

from __future__ import annotations

import math
from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal, TypeAlias

from oven_tui.model.braille_chart import CurveStyle
from oven_tui.model.cell_text import TextRun, glyph
from oven_tui.model.metric_series import Bucket, merge_to_columns
from oven_tui.model.monitor_view import MonitorView

MAX_RUNS = 4
"""Maximum number of runs in an overlay, so that the curves in a chart can be distinguished."""
AxisUnit: TypeAlias = Literal["step", "tick"]
"""Unit of the x-axis. Ticks count all observations, including those of steps that were rolled back."""


@dataclass
class OverlaidRun:
    """One run of an overlay. `index` determines its glyph and colour."""

    name: str
    index: int
    view: MonitorView

    @property
    def symbol(self) -> TextRun:
        return glyph(self.index)


class RunAxis:
    """The positions of a run's ticks on the shared axis. A new one is created for each paint."""

    def __init__(self, view: MonitorView, unit: AxisUnit) -> None:
        self._unit = unit
        points = view.steps.points() if unit == "step" else []
        self._ticks = [point.key for point in points]
        self._steps = [int(point.last) if math.isfinite(point.last) else 0 for point in points]
        self.end = view.run.step if unit == "step" else view.run.tick
        """The newest position of the run on the axis."""

    def position(self, tick: int) -> int:
        """Return the position of a tick: the tick itself, or the step of the last observation up to it."""
        if self._unit == "tick" or not self._ticks:
            return tick
        index = bisect_right(self._ticks, tick) - 1
        return self._steps[max(0, index)]

    def columns(self, view: MonitorView, metric: str, first: int, last: int, width: int) -> list[Bucket]:
        """Return a metric from `first` to `last` in at most `width` columns. On an axis of steps, values from before a
        rollback are replaced by those from after it."""
        series = view.series.get(metric)
        if series is None:
            return []
        if self._unit == "tick":
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
        return merge_to_columns(buckets, first, last, width)


def curve_names(runs: Sequence[OverlaidRun]) -> list[str]:
    """Return the names of all curves. Metrics that several runs have come first."""
    names = list(dict.fromkeys(name for run in runs for name in run.view.curve_names()))
    return sorted(names, key=lambda name: sum(name in run.view.series for run in runs) < 2)  # keeps the order otherwise


def style(runs: Sequence[OverlaidRun], metric: str) -> CurveStyle:
    """Return the metric's style in the first run that has it."""
    return next((run.view.style(metric) for run in runs if metric in run.view.series), "noisy")
