"""The base class of charts, with the metric's name and figures above, values at the left, and steps or ticks below."""

from __future__ import annotations

from abc import abstractmethod

from oven_tui.model.braille_chart import Bounds, value_label
from oven_tui.model.cell_text import TextRun, clip, fit, row
from oven_tui.widgets.base_widgets import Lines

GUTTER = 7  # width of the labels at the left of the curves, in cells
MIN_CURVE_CELLS = 8
"""Minimum width of a curve in cells."""
WINDOWS = (None, 1000, 300, 100, 30)
"""Number of newest steps or ticks to show, for each zoom level. None shows all."""


class Plot(Lines):
    def __init__(self, *, id: str, has_axis_row: bool = False) -> None:
        super().__init__(id=id)
        self.metric: str | None = None
        self.has_axis_row = has_axis_row
        self.placeholder = ""
        """Text to show if there is no metric."""

    @abstractmethod
    def plot_rows(self, metric: str, width: int, height: int) -> tuple[Bounds | None, list[list[TextRun]]]:
        """Return the bounds and the rows with the curves. The bounds are None if nothing was measured."""

    @abstractmethod
    def figures(self, metric: str, bounds: Bounds | None) -> list[TextRun]:
        """Return the text at the right of the metric's name."""

    @abstractmethod
    def axis_labels(self) -> tuple[str, str, str]:
        """Return the labels at the left, in the middle and at the right of the x-axis."""

    def rows(self, width: int, height: int) -> list[list[TextRun]]:
        curve_width, chart_height = width - GUTTER, height - (2 if self.has_axis_row else 1)
        if self.metric is None or curve_width < MIN_CURVE_CELLS or chart_height < 1:
            blank = row(width, [])
            head = [(self.metric, "title")] if self.metric else [(" " * GUTTER, "blank"), (self.placeholder, "dim")]
            return [row(width, head), *[blank] * (height - 1)]
        bounds, curve_rows = self.plot_rows(self.metric, curve_width, chart_height)
        title = [(" " * (GUTTER - 1), "blank"), (f" {self.metric}", "title")]
        rows = [row(width, title, [("  ", "blank"), *self.figures(self.metric, bounds)])]
        for y, runs in enumerate(curve_rows):
            edge = value_label(y, chart_height, bounds, GUTTER) if bounds else " " * (GUTTER - 1) + "│"
            rows.append([(edge, "dim"), *runs])
        if self.has_axis_row:
            first, middle, last = self.axis_labels()
            line = fit(first, curve_width // 2 - len(middle) // 2) + middle
            line = fit(line, curve_width - len(last)) + last
            rows.append(row(width, [(" " * GUTTER, "blank"), (clip(line, curve_width), "dim")]))
        return rows
