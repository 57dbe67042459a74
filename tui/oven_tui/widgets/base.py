"""Base classes of the widgets: rows of styled text, redrawn where they differ, and panels."""

from __future__ import annotations

from abc import abstractmethod
from typing import TYPE_CHECKING, ClassVar

from rich.segment import Segment
from rich.style import Style
from textual.geometry import Region
from textual.strip import Strip
from textual.widget import Widget

from oven_tui.model.braille_chart import Run
from oven_tui.model.cell_text import COLOURS
from oven_tui.model.monitor_view import MonitorView

TEXT = ("blank", "text", "dim", "strong", "title", "good", "warn", "bad", "drill", "cursor", "cross")
DOTS = ("line", "raw", "broken", "change")
KINDS = (*TEXT, *DOTS)
PAINTS = {f"paint--{kind}" for kind in (*KINDS, *(f"agent-{n}" for n in range(COLOURS)))}
"""A component class for each kind of text (styles.tcss)."""

if TYPE_CHECKING:
    _Base = Widget
else:
    _Base = object  # as a Widget it would stand before the other base and hide that one's defaults


class Painted(_Base):
    """Mixin for a widget with the component classes PAINTS: turns runs of text into strips."""

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._paints: dict[str, Style] = {}

    def paint(self, kind: str) -> Style:
        """Return the style of a kind. Textual forgets component styles with every refresh; here they last until the
        theme changes."""
        if kind not in self._paints:
            self._paints[kind] = self.get_component_rich_style(f"paint--{kind}")
        return self._paints[kind]

    def strip(self, runs: list[Run], *, picked: bool = False) -> Strip:
        chosen = self.paint("cursor")
        over = Style(bgcolor=chosen.bgcolor, reverse=chosen.reverse) if picked else Style.null()
        return Strip([Segment(text, self.paint(kind) + over) for text, kind in runs])


class Panel(_Base):
    """The last base of a widget that shows a part of the view. The application sets `view` and calls `redraw`."""

    view: MonitorView

    @abstractmethod
    def redraw(self) -> None:
        """Draw what changed in the view since the last call."""


class Lines(Painted, Widget):
    """Redraws row by row, so that only differences go to the terminal."""

    COMPONENT_CLASSES: ClassVar[set[str]] = PAINTS

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.drawn_rows: list[list[Run]] = []

    @abstractmethod
    def rows(self, width: int, height: int) -> list[list[Run]]:
        """Return the content: a list of runs per row."""

    def redraw(self) -> None:
        width, height = self.content_size
        if not width or not height:
            return
        before, self.drawn_rows = self.drawn_rows, self.rows(width, height)
        if len(before) != len(self.drawn_rows):
            self.refresh()
            return
        changed = [y for y, (old, new) in enumerate(zip(before, self.drawn_rows, strict=True)) if old != new]
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def on_resize(self) -> None:
        self.drawn_rows = []
        self.redraw()

    def render_line(self, y: int) -> Strip:
        if y >= len(self.drawn_rows):
            return Strip.blank(self.content_size.width, self.rich_style)
        return self.strip(self.drawn_rows[y])
