"""The four charts: which metrics, ticks and scale they show, and the crosshair over them."""

from __future__ import annotations

from collections.abc import Sequence

from textual.app import ComposeResult
from textual.containers import Container

from oven_tui.model import braille_chart
from oven_tui.model.braille_chart import Axis
from oven_tui.model.chart_marks import ChartMarks
from oven_tui.model.decisions import pattern
from oven_tui.model.monitor_view import MonitorView
from oven_tui.widgets.chart import Chart

CHARTS = 4
WINDOWS = (None, 1000, 300, 100, 30)
"""Ticks to show: all, or the newest."""


class Charts(Container):
    """Set `view` and the other attributes, and call `redraw`."""

    def __init__(self, view: MonitorView) -> None:
        super().__init__(id="charts")
        self.view = view
        self.page = 0
        self.zoom = 0
        self.wanted = ""
        """Regular expressions that must all match a metric's name; `!` before one negates it. Empty: all metrics."""
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
        """Draw what changed since the last call."""
        names, axis = self._shown(), self._axis()
        cross = self.pointed if self.pointed is not None else self.cross
        for index, chart in enumerate(self._charts):
            chart.view, chart.axis, chart.cross = self.view, axis, cross
            chart.metric = names[index] if index < len(names) else None
            chart.logarithmic = chart.metric in self._logarithmic
            chart.nothing = "no metric has such a name" if self.wanted and not index and not names else ""
            chart.redraw()

    def metrics(self) -> list[str]:
        """Return the names that pass the filter, the most important first."""
        return [name for name in self.view.charted() if _matches(self.wanted, name)]

    def turn_log(self) -> None:
        """Give the visible charts a log scale, or remove it if all that can have one have it. A metric that is not
        above 0 stays linear, and says so."""
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
        names = self.metrics()
        page = self.page % max(1, -(-len(names) // CHARTS))
        return names[page * CHARTS : (page + 1) * CHARTS]

    def _axis(self) -> Axis:
        tick, window = self.view.run.tick, WINDOWS[self.zoom]
        if window is None or tick <= window:
            return Axis(0, braille_chart.span(0, tick, self.view.end_tick()))
        return Axis(tick - window, tick)


def _matches(wanted: str, name: str) -> bool:
    return all(bool(pattern(word.removeprefix("!")).search(name)) != word.startswith("!") for word in wanted.split())
