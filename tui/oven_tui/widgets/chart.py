"""A chart of one metric over the run's ticks, with decisions marked. Charts share the x-axis."""

from __future__ import annotations

import math

from textual.events import Leave, MouseMove
from textual.message import Message

from oven_tui.model.braille_chart import Axis, Bounds, Run, bounds, draw, label
from oven_tui.model.cell_text import clip, fit, row
from oven_tui.model.chart_marks import ChartMarks
from oven_tui.model.metric_series import Column
from oven_tui.model.monitor_view import MonitorView
from oven_tui.widgets.base import Lines

GUTTER = 7


class Chart(Lines):
    class Pointed(Message):
        """The mouse is over a tick; None when it has left."""

        def __init__(self, tick: int | None) -> None:
            super().__init__()
            self.tick = tick

    def __init__(self, view: MonitorView, marks: ChartMarks, *, id: str, axis_row: bool) -> None:
        super().__init__(id=id)
        self.view = view
        self.axis = Axis(0, 30)
        self.metric: str | None = None
        self.logarithmic = False
        """Whether a log scale was asked for. A metric that is not above 0 stays linear."""
        self.cross: int | None = None
        """The tick of the crosshair."""
        self.nothing = ""
        """The text if there is no metric."""
        self._marks = marks
        self._axis_row = axis_row

    def rows(self, width: int, height: int) -> list[list[Run]]:
        if self.metric is None:
            blank = row(width, [])
            return [row(width, [(" " * GUTTER, "blank"), (self.nothing, "dim")]), *[blank] * (height - 1)]
        inner, tall = width - GUTTER, height - 1 - self._axis_row
        if inner < 8 or tall < 1:
            return [row(width, [(self.metric, "title")]), *(row(width, []) for _ in range(height - 1))]
        axis, style = self.axis, self.view.style(self.metric)
        columns = self.curve(self.metric, inner * 2)
        scale = bounds(columns, style, self.logarithmic)
        marks = self._marks.cells(self.view, axis, inner)
        cross = None if self.cross is None else axis.cell(self.cross, inner)
        drawn = draw(columns, scale, style, marks, inner, tall, cross=cross)
        made = [self._title(width, scale)]
        for y, runs in enumerate(drawn):
            made.append([(self._tick(y, tall, scale) if columns else " " * (GUTTER - 1) + "│", "dim"), *runs])
        if self._axis_row:
            made.append(self._steps(width, inner))
        return made

    def curve(self, metric: str, width: int) -> list[Column]:
        """Return the metric's curve on `width` columns."""
        axis, series = self.axis, self.view.series.get(metric)
        columns = series.columns(axis.first, axis.last, width) if series else []
        if columns and self.view.style(metric) == "set":
            columns = self._held_on(columns, width)
        return columns

    def _held_on(self, columns: list[Column], width: int) -> list[Column]:
        """Continue a knob's line to the newest tick, because it keeps its value until the next change."""
        end, newest = self.axis.cell(self.view.run.tick, width), columns[-1]
        if end is None or end <= newest.x or not math.isfinite(newest.last):
            return columns
        return [*columns, newest._replace(x=end, low=newest.last, high=newest.last, broken=0)]

    def _title(self, width: int, scale: Bounds) -> list[Run]:
        assert self.metric is not None
        series = self.view.series.get(self.metric)
        right: list[Run] = [("log  ", "dim")] if scale.log else []
        if self.logarithmic and not scale.log:
            right = [("not above 0: linear  ", "dim")]
        if self.cross is not None and series and series.count:
            value = series.value_at(self.cross)
            right += [(f"step {self.view.step_at(self.cross)} ", "cross"), (f"{value:.4g} ", "strong")]
        elif series and series.count:
            broken = not math.isfinite(series.last)
            right.append((f"{series.last:.4g} ", "broken" if broken else "strong"))
        else:
            right.append(("no value yet ", "dim"))
        return row(width, [(" " * (GUTTER - 1), "blank"), (f" {self.metric}", "title")], [("  ", "blank"), *right])

    def _tick(self, y: int, tall: int, scale: Bounds) -> str:
        value = {0: scale.high, tall - 1: scale.low}.get(y)
        if tall >= 7 and y == tall // 2:
            value = scale.middle()
        return (label(value).rjust(GUTTER - 1) + "┤") if value is not None else " " * (GUTTER - 1) + "│"

    def _steps(self, width: int, inner: int) -> list[Run]:
        """Return the optimizer steps under the axis: at the left, in the middle and at the right."""
        axis = self.axis
        first_step, middle, right = (
            str(self.view.step_at(tick)) for tick in (axis.first, (axis.first + axis.last) // 2, axis.last)
        )
        line = fit(f"step {first_step}", inner // 2 - len(middle) // 2) + middle
        line = fit(line, inner - len(right)) + right
        return row(width, [(" " * GUTTER, "blank"), (clip(line, inner), "dim")])

    def on_mouse_move(self, event: MouseMove) -> None:
        inner = self.content_size.width - GUTTER
        offset = event.get_content_offset(self)
        if offset is None or offset.x < GUTTER or inner < 8:
            self.post_message(self.Pointed(None))
            return
        first, last = self.axis.first, self.axis.last
        tick = first + int((offset.x - GUTTER + 0.5) * (last - first + 1) / inner)
        self.post_message(self.Pointed(min(tick, self.view.run.tick)))

    def on_leave(self, event: Leave) -> None:
        self.post_message(self.Pointed(None))
