"""The charts of one run: which metrics, ticks and scale they show, decisions marked, and the crosshair over them."""

from __future__ import annotations

import math
from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Container
from textual.events import Leave, MouseMove
from textual.message import Message

from oven_tui.model import braille_chart
from oven_tui.model.braille_chart import Axis, Bounds, Mark, Run, bounds, draw
from oven_tui.model.cell_text import FATES, glyph
from oven_tui.model.metric_series import Bucket
from oven_tui.model.monitor_view import MonitorView
from oven_tui.model.word_filter import word_filter
from oven_tui.widgets.plot import GUTTER, LEAST, WINDOWS, Plot

CHARTS = 4


class ChartMarks:
    """The marks of one view, computed once for all charts of one width."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._cells: dict[int, dict[int, Mark]] = {}

    def cells(self, view: MonitorView, axis: Axis, width: int) -> dict[int, Mark]:
        key = (id(view), view.marked, len(view.agents), axis)
        if key != self._key:
            self._key, self._cells = key, {}
        if width not in self._cells:
            self._cells[width] = _marks(view, axis, width)
        return self._cells[width]


def _marks(view: MonitorView, axis: Axis, width: int) -> dict[int, Mark]:
    marks: dict[int, Mark] = {}
    places = {name: index for index, name in enumerate(view.agents)}
    for tick, author, fate in view.marks.values():
        if (cell := axis.cell(tick, width)) is None:
            continue
        if fate == "operator":
            marks[cell] = Mark("⚑", "warn")
        elif fate in ("failed", "pending"):
            marks[cell] = Mark(FATES[fate][0], FATES[fate][2])  # type: ignore[index]
        else:
            marks[cell] = Mark(*glyph(places.get(author, 0)))
    return marks


class Chart(Plot):
    """A chart of one metric over the run's ticks. Charts share the x-axis."""

    class Pointed(Message):
        """The mouse is over a tick; None when it has left."""

        def __init__(self, tick: int | None) -> None:
            super().__init__()
            self.tick = tick

    def __init__(self, view: MonitorView, marks: ChartMarks, *, id: str, axis_row: bool) -> None:
        super().__init__(id=id, axis_row=axis_row)
        self.view = view
        self.axis = Axis(0, 30)
        self.logarithmic = False
        """Whether the user asked for a log scale. A metric that is not above 0 stays linear."""
        self.cross: int | None = None
        """The tick of the crosshair."""
        self._marks = marks

    def plotted(self, metric: str, width: int, height: int) -> tuple[Bounds | None, list[list[Run]]]:
        axis, style = self.axis, self.view.style(metric)
        columns = self.curve(metric, width * 2)
        scale = bounds(columns, style, self.logarithmic)
        marks = self._marks.cells(self.view, axis, width)
        cross = None if self.cross is None else axis.cell(self.cross, width)
        return scale if columns else None, draw(columns, scale, style, marks, width, height, cross=cross)

    def curve(self, metric: str, width: int) -> list[Bucket]:
        """Return the metric's curve on `width` columns. A knob's line continues to the newest tick, because it keeps
        its value until the next change."""
        axis, series = self.axis, self.view.series.get(metric)
        columns = series.columns(axis.first, axis.last, width) if series else []
        if columns and self.view.style(metric) == "set":
            end, value = axis.cell(self.view.run.tick, width), columns[-1].last
            if end is not None and end > columns[-1].key and math.isfinite(value):
                columns.append(Bucket(end, value, value, value, columns[-1].smooth))
        return columns

    def figures(self, metric: str, scale: Bounds | None) -> list[Run]:
        series = self.view.series.get(metric)
        log = scale is not None and scale.log
        runs: list[Run] = [("log  ", "dim")] if log else []
        if self.logarithmic and not log:
            runs = [("not above 0: linear  ", "dim")]
        if series is None or not series.count:
            return [*runs, ("no value yet ", "dim")]
        if self.cross is not None:
            step = (f"step {self.view.step_at(self.cross)} ", "cross")
            return [*runs, step, (f"{series.value_at(self.cross):.4g} ", "strong")]
        return [*runs, (f"{series.last:.4g} ", "strong" if math.isfinite(series.last) else "broken")]

    def axis_labels(self) -> tuple[str, str, str]:
        first, last = self.axis.first, self.axis.last
        step_at = self.view.step_at
        return f"step {step_at(first)}", str(step_at((first + last) // 2)), str(step_at(last))

    def on_mouse_move(self, event: MouseMove) -> None:
        inner = self.content_size.width - GUTTER
        offset = event.get_content_offset(self)
        if offset is None or offset.x < GUTTER or inner < LEAST:
            self.post_message(self.Pointed(None))
            return
        first, last = self.axis.first, self.axis.last
        tick = first + int((offset.x - GUTTER + 0.5) * (last - first + 1) / inner)
        self.post_message(self.Pointed(min(tick, self.view.run.tick)))

    def on_leave(self, event: Leave) -> None:
        self.post_message(self.Pointed(None))


class Charts(Container):
    """Set `view` and the other attributes, and call `redraw`."""

    def __init__(self, view: MonitorView) -> None:
        super().__init__(id="charts")
        self.view = view
        self.page = 0
        self.zoom = 0
        self.wanted = ""
        """A filter of the metrics' names."""
        self.cross: int | None = None
        """The tick of the crosshair: that of the chosen decision."""
        self.pointed: int | None = None
        """The tick under the mouse, which has precedence over the chosen decision."""
        self._logarithmic: set[str] = set()
        self._marks = ChartMarks()
        self._charts: list[Chart] = []

    def compose(self) -> ComposeResult:
        self._charts = [
            Chart(self.view, self._marks, id=f"chart-{index}", axis_row=index >= CHARTS // 2) for index in range(CHARTS)
        ]
        yield from self._charts

    def redraw(self) -> None:
        names, axis = self._shown(), self._axis()
        cross = self.pointed if self.pointed is not None else self.cross
        for index, chart in enumerate(self._charts):
            chart.view, chart.axis, chart.cross = self.view, axis, cross
            chart.metric = names[index] if index < len(names) else None
            chart.logarithmic = chart.metric in self._logarithmic
            chart.nothing = "no metric has such a name" if self.wanted and not index and not names else ""
            chart.redraw()

    def turn_log(self) -> None:
        """Give the visible charts a log scale, or remove it if all have it. A metric not above 0 stays linear."""
        shown = set(self._shown())
        self._logarithmic = self._logarithmic - shown if shown <= self._logarithmic else self._logarithmic | shown

    def turn_page(self, by: int) -> None:
        self.page += by

    def turn_zoom(self, by: int) -> None:
        self.zoom = max(0, min(len(WINDOWS) - 1, self.zoom + by))

    def on_chart_pointed(self, message: Chart.Pointed) -> None:
        if message.tick != self.pointed:
            self.pointed = message.tick
            self.redraw()

    def _shown(self) -> Sequence[str]:
        names = list(filter(word_filter(self.wanted, str), self.view.charted()))
        page = self.page % max(1, -(-len(names) // CHARTS))
        return names[page * CHARTS : (page + 1) * CHARTS]

    def _axis(self) -> Axis:
        tick, window = self.view.run.tick, WINDOWS[self.zoom]
        if window is None or tick <= window:
            return Axis(0, braille_chart.span(0, tick, self.view.end_tick()))
        return Axis(tick - window, tick)
