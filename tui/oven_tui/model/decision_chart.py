"""A small chart of the metric that judges a decision, around the tick at which it took effect, with the logged
forecast."""

from __future__ import annotations

import math

from oven_tui.model.braille_chart import Axis, Mark, Run, bounds, draw, value_label
from oven_tui.model.cell_text import row
from oven_tui.model.decisions import Decided, tick_of
from oven_tui.model.metric_series import Bucket
from oven_tui.model.monitor_view import MonitorView

GUTTER, TALL = 8, 7
BEFORE = 0.6
"""Ticks before the decision, as a share of those after it."""
LEAST = 12
"""Fewest ticks after a decision."""


def chart(view: MonitorView, entry: Decided, width: int) -> list[list[Run]]:
    """Return the chart's rows; none if no metric judges the decision, or if it was not measured around it."""
    decision, tick = entry.decision, tick_of(entry)
    series = view.series.get(decision.target)
    inner = width - GUTTER
    if series is None or tick is None or inner < 16:
        return []
    ahead = max(LEAST, round(1.5 * decision.horizon))
    axis = Axis(max(0, tick - max(LEAST, round(BEFORE * ahead))), tick + ahead)
    columns = series.columns(axis.first, axis.last, inner * 2)
    forecast = _forecast(entry, axis, tick, _level(columns, axis, tick, inner * 2), inner * 2)
    if not columns:
        return []
    style = view.style(decision.target)
    scale = bounds([*columns, *forecast], style)
    cell = axis.cell(tick, inner)
    marks = {} if cell is None else {cell: Mark("◆", "warn")}
    drawn = draw(columns, scale, style, marks, inner, TALL, forecast)
    rows = [[(value_label(y, TALL, scale, GUTTER, middle=False), "dim"), *runs] for y, runs in enumerate(drawn)]
    title: list[Run] = [(f"{decision.target} around the decision", "title")]
    legend: list[Run] = (
        [("⠤ measured  ", "line")] if style != "noisy" else [("⠤ average  ", "line"), ("⠤ raw  ", "raw")]
    )
    if forecast:
        legend.append((f"⠤ forecast {decision.expected_change:+.3g} in {decision.horizon} ticks", "change"))
    steps = f"step {view.step_at(axis.first)}"
    end = str(view.step_at(axis.last))
    return [row(width, title, legend), *rows, row(width, [(" " * GUTTER + steps, "dim")], [(end, "dim")])]


def _level(columns: list[Bucket], axis: Axis, tick: int, width: int) -> float:
    """Return the metric when the decision took effect; NaN if it was not measured before."""
    cell = axis.cell(tick, width) or 0
    before = [column.smooth for column in columns if column.key <= cell and math.isfinite(column.smooth)]
    return before[-1] if before else math.nan


def _forecast(entry: Decided, axis: Axis, tick: int, level: float, width: int) -> list[Bucket]:
    """Return a straight line from the level at the decision to the promised change at the end of its horizon."""
    decision = entry.decision
    first, last = axis.cell(tick, width), axis.cell(tick + decision.horizon, width)
    if not decision.expected_change or not decision.horizon or first is None or last is None or level != level:
        return []
    points = [(first, level), (last, level + decision.expected_change)]
    return [Bucket(x, value, value, value, value) for x, value in points]
