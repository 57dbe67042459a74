"""The charts of one run, with marks for decisions, a crosshair, pages of metrics and a zoom."""

from __future__ import annotations

import math
from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Container
from textual.events import Leave, MouseMove
from textual.message import Message

from oven_tui.model import braille_chart
from oven_tui.model.braille_chart import Bounds, Mark, TickAxis, draw_chart, round_bounds
from oven_tui.model.cell_text import FATE_LABELS, TextRun, glyph
from oven_tui.model.metric_series import Bucket, ColumnCache
from oven_tui.model.monitor_view import MonitorView
from oven_tui.model.word_filter import word_filter
from oven_tui.widgets.plot import GUTTER, MIN_CURVE_CELLS, WINDOWS, Plot

CHARTS = 4  # number of charts per page


class ChartMarks:
    """A cache of the marks of a view, shared by all charts of the same width."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._cells: dict[int, dict[int, Mark]] = {}

    def find_cells(self, view: MonitorView, axis: TickAxis, width: int) -> dict[int, Mark]:
        """Return the mark in each cell that has one, for charts of this width."""
        key = (id(view), view.mark_version, len(view.agents), axis)
        if key != self._key:
            self._key, self._cells = key, {}
        if width not in self._cells:
            self._cells[width] = _place_marks(view, axis, width)
        return self._cells[width]


def _place_marks(view: MonitorView, axis: TickAxis, width: int) -> dict[int, Mark]:
    marks: dict[int, Mark] = {}
    agent_indices = {name: index for index, name in enumerate(view.agents)}
    for tick, author, fate in view.marks.values():
        if (cell := axis.cell(tick, width)) is None:
            continue
        if fate == "operator":
            marks[cell] = Mark("⚑", "warn")
        elif fate in ("failed", "pending"):
            symbol, _, kind = FATE_LABELS[fate]  # type: ignore[index]
            marks[cell] = Mark(symbol, kind)
        else:
            marks[cell] = Mark(*glyph(agent_indices.get(author, 0)))
    return marks


class Chart(Plot):
    """A chart of one metric over the run's ticks. All charts share the x-axis."""

    class PointerMoved(Message):
        """The mouse has moved to a tick, or has left the chart (None)."""

        def __init__(self, tick: int | None) -> None:
            super().__init__()
            self.tick = tick

    def __init__(self, view: MonitorView, marks: ChartMarks, *, id: str, has_axis_row: bool) -> None:
        super().__init__(id=id, has_axis_row=has_axis_row)
        self.view = view
        self.axis = TickAxis(0, 30)
        self.logarithmic = False
        """Whether the user selected a log scale. A metric with a value of 0 or below still has a linear scale."""
        self.crosshair: int | None = None
        """The tick of the crosshair."""
        self._marks = marks
        self._columns = ColumnCache()

    def plot_rows(self, metric: str, width: int, height: int) -> tuple[Bounds | None, list[list[TextRun]]]:
        axis, style = self.axis, self.view.style(metric)
        columns = self.curve(metric, width * 2)
        bounds = round_bounds(columns, style, self.logarithmic)
        marks = self._marks.find_cells(self.view, axis, width)
        crosshair = None if self.crosshair is None else axis.cell(self.crosshair, width)
        rows = draw_chart(columns, bounds, style, marks, width, height, crosshair=crosshair)
        return bounds if columns else None, rows

    def curve(self, metric: str, width: int) -> list[Bucket]:
        """Return the metric's curve in at most `width` columns. A knob's line continues to the newest tick, because its
        value remains until the next change."""
        axis, series = self.axis, self.view.series.get(metric)
        columns = self._columns.columns(series, axis.first, axis.last, width) if series else []
        if columns and self.view.style(metric) == "set":
            end, value = axis.cell(self.view.run.tick, width), columns[-1].last
            if end is not None and end > columns[-1].key and math.isfinite(value):
                columns.append(Bucket(end, value, value, value, columns[-1].smooth))
        return columns

    def figures(self, metric: str, bounds: Bounds | None) -> list[TextRun]:
        series = self.view.series.get(metric)
        is_log = bounds is not None and bounds.log
        runs: list[TextRun] = [("log  ", "dim")] if is_log else []
        if self.logarithmic and not is_log:
            runs = [("linear because not above 0  ", "dim")]
        if series is None or not series.count:
            return [*runs, ("no value yet ", "dim")]
        if self.crosshair is not None:
            step = (f"step {self.view.step_at(self.crosshair)} ", "cross")
            return [*runs, step, (f"{series.value_at(self.crosshair):.4g} ", "strong")]
        return [*runs, (f"{series.last:.4g} ", "strong" if math.isfinite(series.last) else "broken")]

    def axis_labels(self) -> tuple[str, str, str]:
        first, last = self.axis.first, self.axis.last
        step_at = self.view.step_at
        return f"step {step_at(first)}", str(step_at((first + last) // 2)), str(step_at(last))

    def on_mouse_move(self, event: MouseMove) -> None:
        curve_width = self.content_size.width - GUTTER
        offset = event.get_content_offset(self)
        if offset is None or offset.x < GUTTER or curve_width < MIN_CURVE_CELLS:
            self.post_message(self.PointerMoved(None))
            return
        first, last = self.axis.first, self.axis.last
        tick = first + int((offset.x - GUTTER + 0.5) * (last - first + 1) / curve_width)
        self.post_message(self.PointerMoved(min(tick, self.view.run.tick)))

    def on_leave(self, event: Leave) -> None:
        self.post_message(self.PointerMoved(None))


class Charts(Container):
    """The charts of the dashboard. Set `view` and the other attributes, then call `redraw`."""

    def __init__(self, view: MonitorView) -> None:
        super().__init__(id="charts")
        self.view = view
        self.page = 0
        self.zoom = 0
        self.name_filter = ""
        """The filter for the names of metrics."""
        self.crosshair: int | None = None
        """The tick of the selected decision, where the crosshair is."""
        self.pointer_tick: int | None = None
        """The tick under the mouse, which takes precedence over `crosshair`."""
        self._logarithmic: set[str] = set()
        self._marks = ChartMarks()
        self._charts: list[Chart] = []

    def compose(self) -> ComposeResult:
        self._charts = [
            Chart(self.view, self._marks, id=f"chart-{i}", has_axis_row=i >= CHARTS // 2) for i in range(CHARTS)
        ]
        yield from self._charts

    def redraw(self) -> None:
        names, axis = self._shown_metrics(), self._axis()
        crosshair = self.pointer_tick if self.pointer_tick is not None else self.crosshair
        for index, chart in enumerate(self._charts):
            chart.view, chart.axis, chart.crosshair = self.view, axis, crosshair
            chart.metric = names[index] if index < len(names) else None
            chart.logarithmic = chart.metric in self._logarithmic
            chart.placeholder = self._placeholder() if not index and not names else ""
            chart.redraw()

    def toggle_log_scale(self) -> None:
        """Give the visible charts a log scale, or a linear one if all have a log scale."""
        shown_metrics = set(self._shown_metrics())
        if shown_metrics <= self._logarithmic:
            self._logarithmic -= shown_metrics
        else:
            self._logarithmic |= shown_metrics

    def change_page(self, offset: int) -> None:
        self.page += offset

    def change_zoom(self, offset: int) -> None:
        self.zoom = max(0, min(len(WINDOWS) - 1, self.zoom + offset))

    def on_chart_pointer_moved(self, message: Chart.PointerMoved) -> None:
        if message.tick != self.pointer_tick:
            self.pointer_tick = message.tick
            self.redraw()

    def _shown_metrics(self) -> Sequence[str]:
        names = list(filter(word_filter(self.name_filter, str), self.view.curve_names()))
        page = self.page % max(1, math.ceil(len(names) / CHARTS))
        return names[page * CHARTS : (page + 1) * CHARTS]

    def _placeholder(self) -> str:
        return "no metric matches the filter" if self.name_filter else "curves start with the first step"

    def _axis(self) -> TickAxis:
        tick, window = self.view.run.tick, WINDOWS[self.zoom]
        if window is None or tick <= window:
            return TickAxis(0, braille_chart.axis_end(0, tick, self.view.end_tick()))
        return TickAxis(tick - window, tick)
