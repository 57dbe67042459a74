"""The frame of a chart: the metric's name and figures above it, its values at the left, its steps or ticks below."""

from __future__ import annotations

from abc import abstractmethod

from oven_tui.model.braille_chart import Bounds, Run, value_label
from oven_tui.model.cell_text import clip, fit, row
from oven_tui.widgets.base import Lines

GUTTER = 7
LEAST = 8
"""Fewest cells of a curve."""
WINDOWS = (None, 1000, 300, 100, 30)
"""Steps or ticks to show: all, or the newest."""


class Plot(Lines):
    def __init__(self, *, id: str, axis_row: bool = False) -> None:
        super().__init__(id=id)
        self.metric: str | None = None
        self.axis_row = axis_row
        self.nothing = ""
        """The text if there is no metric."""

    @abstractmethod
    def plotted(self, metric: str, width: int, height: int) -> tuple[Bounds | None, list[list[Run]]]:
        """Return the curves and their bounds; None if nothing was measured."""

    @abstractmethod
    def figures(self, metric: str, scale: Bounds | None) -> list[Run]:
        """Return what stands next to the metric's name."""

    @abstractmethod
    def axis_labels(self) -> tuple[str, str, str]:
        """Return the steps or ticks at the left, in the middle and at the right."""

    def rows(self, width: int, height: int) -> list[list[Run]]:
        inner, tall = width - GUTTER, height - 1 - self.axis_row
        if self.metric is None or inner < LEAST or tall < 1:
            blank = row(width, [])
            head = [(self.metric, "title")] if self.metric else [(" " * GUTTER, "blank"), (self.nothing, "dim")]
            return [row(width, head), *[blank] * (height - 1)]
        scale, drawn = self.plotted(self.metric, inner, tall)
        title = [(" " * (GUTTER - 1), "blank"), (f" {self.metric}", "title")]
        made = [row(width, title, [("  ", "blank"), *self.figures(self.metric, scale)])]
        for y, runs in enumerate(drawn):
            edge = value_label(y, tall, scale, GUTTER) if scale else " " * (GUTTER - 1) + "│"
            made.append([(edge, "dim"), *runs])
        if self.axis_row:
            first, middle, last = self.axis_labels()
            line = fit(first, inner // 2 - len(middle) // 2) + middle
            line = fit(line, inner - len(last)) + last
            made.append(row(width, [(" " * GUTTER, "blank"), (clip(line, inner), "dim")]))
        return made
