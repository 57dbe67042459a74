"""Draws a small chart of the metric by which a decision is judged, with the forecast from the log. It shows the ticks
before and after the one at which the decision took effect."""

from __future__ import annotations

import math

from oven_tui.model.braille_chart import Mark, TextRun, TickAxis, draw, round_bounds, value_label
from oven_tui.model.cell_text import row
from oven_tui.model.decision_entries import DecisionEntry, tick_of
from oven_tui.model.metric_series import Bucket
from oven_tui.model.monitor_view import MonitorView

GUTTER, HEIGHT = 8, 7  # width of the value labels and height of the curve, in cells
AFTER_RATIO = 1.5  # number of ticks after the decision, divided by the horizon of its forecast
BEFORE_RATIO = 0.6  # number of ticks before the decision, divided by the number of ticks after it
MIN_TICKS = 12
"""Minimum number of ticks before and after a decision."""
MIN_PLOT_CELLS = 16


def chart(view: MonitorView, entry: DecisionEntry, width: int) -> list[list[TextRun]]:
    """Return the chart's rows. The list is empty if the decision has no metric, or if there are no values to show."""
    decision, tick = entry.decision, tick_of(entry)
    series = view.series.get(decision.target)
    plot_width = width - GUTTER
    if series is None or tick is None or plot_width < MIN_PLOT_CELLS:
        return []
    ticks_after = max(MIN_TICKS, round(AFTER_RATIO * decision.horizon))
    ticks_before = max(MIN_TICKS, round(BEFORE_RATIO * ticks_after))
    axis = TickAxis(max(0, tick - ticks_before), tick + ticks_after)
    dot_count = plot_width * 2
    columns = series.columns(axis.first, axis.last, dot_count)
    if not columns:
        return []
    start_value = _find_start_value(columns, axis, tick, dot_count)
    forecast = _draw_forecast(entry, axis, tick, start_value, dot_count)
    style = view.style(decision.target)
    scale = round_bounds([*columns, *forecast], style)
    cell = axis.cell(tick, plot_width)
    marks = {} if cell is None else {cell: Mark("◆", "warn")}
    lines = draw(columns, scale, style, marks, plot_width, HEIGHT, forecast)
    rows = [[(value_label(y, HEIGHT, scale, GUTTER, show_middle=False), "dim"), *runs] for y, runs in enumerate(lines)]
    title: list[TextRun] = [(f"{decision.target} around the decision", "title")]
    legend: list[TextRun] = [("⠤ measured  ", "line")]
    if style == "noisy":
        legend = [("⠤ average  ", "line"), ("⠤ raw  ", "raw")]
    if forecast:
        legend.append((f"⠤ forecast {decision.expected_change:+.3g} in {decision.horizon} ticks", "change"))
    first_step = f"step {view.step_at(axis.first)}"
    last_step = str(view.step_at(axis.last))
    return [row(width, title, legend), *rows, row(width, [(" " * GUTTER + first_step, "dim")], [(last_step, "dim")])]


def _find_start_value(columns: list[Bucket], axis: TickAxis, tick: int, dot_count: int) -> float:
    """Return the metric's average when the decision took effect, or NaN if it was not measured before."""
    dot = axis.cell(tick, dot_count) or 0
    earlier = [column.smooth for column in columns if column.key <= dot and math.isfinite(column.smooth)]
    return earlier[-1] if earlier else math.nan


def _draw_forecast(entry: DecisionEntry, axis: TickAxis, tick: int, start_value: float, dot_count: int) -> list[Bucket]:
    """Return a straight line from the value at the decision to the expected value at the end of its horizon."""
    decision = entry.decision
    first, last = axis.cell(tick, dot_count), axis.cell(tick + decision.horizon, dot_count)
    if not decision.expected_change or not decision.horizon:
        return []
    if first is None or last is None or math.isnan(start_value):
        return []
    points = [(first, start_value), (last, start_value + decision.expected_change)]
    return [Bucket(x, value, value, value, value) for x, value in points]
