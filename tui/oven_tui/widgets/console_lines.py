"""The lines of a console: a list that renders only visible rows, the newest last. It follows the newest until the user
moves up."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType
from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from oven_tui.bindings import bindings
from oven_tui.model.braille_chart import Run
from oven_tui.model.cell_text import fit, glyph, row
from oven_tui.model.console import ALL, Console
from oven_tui.widgets.base import PAINTS, Painted

PROCESS = 16
"""Cells of a process's name."""
ASIDE = 20
"""Cells by which a key moves the text sideways."""


class ConsoleLines(Painted, ScrollView, can_focus=True):
    COMPONENT_CLASSES: ClassVar[set[str]] = PAINTS
    BINDINGS: ClassVar[list[BindingType]] = bindings("console")

    def __init__(self, console: Console) -> None:
        super().__init__(id="console-lines")
        self._written = console
        self._aside = 0
        self._follows = True
        self._forgotten = 0

    def redraw(self) -> None:
        """Show the console's present lines."""
        lines = self._written.lines()
        self.virtual_size = Size(self.size.width, len(lines))
        if self._follows:
            self.scroll_to(y=len(lines), animate=False, force=True)
        else:  # what was let go has moved up
            gone, self._forgotten = self._written.forgotten - self._forgotten, self._written.forgotten
            if gone:
                self.scroll_to(y=max(0, self.scroll_offset.y - gone), animate=False, force=True)
        self._forgotten = self._written.forgotten
        self.refresh()

    def on_resize(self) -> None:
        self.redraw()

    def on_mouse_scroll_up(self) -> None:
        self._follows = False

    def action_lines(self, by: int) -> None:
        self._move(self.scroll_offset.y + by)

    def action_page(self, by: int) -> None:
        self._move(self.scroll_offset.y + by * max(1, self.size.height - 1))

    def action_first(self) -> None:
        self._move(0)

    def action_last(self) -> None:
        self._follows = True
        self.redraw()

    def action_aside(self, by: int) -> None:
        self._aside = max(0, self._aside + by * ASIDE)
        self.refresh()

    def _move(self, y: int) -> None:
        last = max(0, self.virtual_size.height - self.size.height)
        self._follows = y >= last
        self.scroll_to(y=max(0, min(y, last)), animate=False, force=True)

    def render_line(self, y: int) -> Strip:
        lines, number = self._written.lines(), y + self.scroll_offset.y
        width = self.scrollable_content_region.width
        if number >= len(lines):
            hint = "no line matches; escape shows all" if self._written.filter else "nothing was written yet"
            return self.strip(row(width, [(hint, "dim")] if not lines and number == 0 else []))
        line = lines[number]
        runs: list[Run] = []
        if self._written.process == ALL:
            index = self._written.processes.index(line.process)
            sign, colour = glyph(index)
            runs = [(f"{sign} ", colour), (fit(line.process, PROCESS) + " ", "dim")]
        return self.strip(row(width, [*runs, (line.text[self._aside :], line.kind)]))
