"""A chart of one metric over the run's ticks, with the decisions marked; charts share the x-axis."""

from __future__ import annotations

import math
from dataclasses import dataclass

from oven_tui.model.braille_chart import Bounds, Mark, Run, bounds, draw, label
from oven_tui.model.cell_text import FATES, clip, fit, glyph, row
from oven_tui.model.fans import around
from oven_tui.model.monitor_view import MonitorView
from oven_tui.widgets.base import Lines

GUTTER = 7


class Chart(Lines):
    def __init__(self, view: MonitorView, *, id: str, axis_row: bool) -> None:
        super().__init__(id=id)
        self.view = view
        self.axis = Axis(0, 30)
        self.metric: str | None = None
        self._axis_row = axis_row

    def rows(self, width: int, height: int) -> list[list[Run]]:
        if self.metric is None:
            return [row(width, []) for _ in range(height)]
        inner, tall = width - GUTTER, height - 1 - self._axis_row
        if inner < 8 or tall < 1:
            return [row(width, [(self.metric, "title")]), *(row(width, []) for _ in range(height - 1))]
        series, style = self.view.series.get(self.metric), self.view.style(self.metric)
        columns = series.columns(self.axis.first, self.axis.last, inner * 2) if series else []
        if style == "set" and series and columns:
            columns = self._held_on(columns, inner * 2)
        branches = self.view.fans.branches(self.metric, self.axis.first, self.axis.last, inner * 2)
        under_way = [column for branch in branches if branch.kind != "trace" for column in branch.columns]
        scale = bounds([*columns, *under_way], style)
        made = [self._title(width, scale)]
        drawn = draw(columns, scale, style, self._marks(inner), inner, tall, around(branches, scale))
        for y, runs in enumerate(drawn):
            made.append([(self._tick(y, tall, scale) if columns else " " * (GUTTER - 1) + "│", "dim"), *runs])
        if self._axis_row:
            made.append(self._steps(width, inner))
        return made

    def _held_on(self, columns: list, width: int) -> list:  # type: ignore[type-arg]
        """A knob keeps its value until it is turned again, so its line continues to the newest tick."""
        end = self.axis.cell(self.view.run.tick, width)
        if end is not None and end > columns[-1].x and math.isfinite(columns[-1].last):
            last = columns[-1].last
            columns.append(columns[-1]._replace(x=end, low=last, high=last, broken=0))
        return columns

    def _title(self, width: int, scale: Bounds) -> list[Run]:
        assert self.metric is not None
        series = self.view.series.get(self.metric)
        right: list[Run] = [("log  ", "dim")] if scale.log else []
        if series and series.count:
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
        """Optimizer steps under the axis: at the left, in the middle and at the right."""
        axis = self.axis
        left, middle, right = (
            str(self.view.step_at(tick)) for tick in (axis.first, (axis.first + axis.last) // 2, axis.last)
        )
        line = fit(f"step {left}", inner // 2 - len(middle) // 2) + middle
        line = fit(line, inner - len(right)) + right
        return row(width, [(" " * GUTTER, "blank"), (clip(line, inner), "dim")])
