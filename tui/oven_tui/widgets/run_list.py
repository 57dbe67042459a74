"""The list of runs: a table that renders only visible rows, the newest run first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import ClassVar

from rich.cells import cell_len
from textual.binding import BindingType
from textual.events import Click
from textual.geometry import Region, Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from oven_runs.log.run_row import RunRow
from oven_tui.bindings import bindings
from oven_tui.model.cell_text import glyph, row
from oven_tui.model.run_table import heading, line, matching
from oven_tui.widgets.base import PAINTS, Painted

MARKED = 4
"""The most runs that can be marked: as many as an overlay shows."""


class RunList(Painted, ScrollView, can_focus=True):
    COMPONENT_CLASSES: ClassVar[set[str]] = PAINTS
    BINDINGS: ClassVar[list[BindingType]] = bindings("runs")

    class Chosen(Message):
        """Runs to open: one, or several as an overlay."""

        def __init__(self, runs: Sequence[str], *, play: bool = False) -> None:
            super().__init__()
            self.runs = list(runs)
            self.play = play

    class Moved(Message):
        """The cursor is on another row, or its row has changed."""

        def __init__(self, row: RunRow | None) -> None:
            super().__init__()
            self.row = row

    def __init__(self) -> None:
        super().__init__(id="runs")
        self.all: list[RunRow] = []
        self.filter = ""
        self.cursor = 0
        self.marked: list[str] = []
        self._rows: list[RunRow] = []

    def show_rows(self, rows: Sequence[RunRow]) -> None:
        """Show new rows. The cursor stays on its run."""
        here = self._rows[self.cursor].run if self.cursor < len(self._rows) else None
        self.all = list(rows)
        names = {row.run for row in rows}
        self.marked = [name for name in self.marked if name in names]
        chosen = matching(self.filter, datetime.now(UTC)) if self.filter else lambda _row: True
        self._rows = [row for row in rows if chosen(row)]
        index = next((n for n, row in enumerate(self._rows) if row.run == here), self.cursor)
        self.cursor = max(0, min(index, len(self._rows) - 1))
        self._resized()
        self.refresh()
        self._tell()

    def put_cursor(self, run: str) -> None:
        """Move the cursor to the run of that name, if it is shown."""
        for number, run_row in enumerate(self._rows):
            if run_row.run == run:
                self.move_to(number)

    def on_resize(self) -> None:
        self._resized()

    def _resized(self) -> None:
        self.virtual_size = Size(self.size.width, len(self._rows) + 1)
        self._keep_cursor_visible()

    def action_move(self, by: int) -> None:
        self.move_to(self.cursor + by)

    def action_page(self, by: int) -> None:
        self.move_to(self.cursor + by * max(1, self.size.height - 2))

    def action_open(self) -> None:
        if len(self.marked) > 1:
            self.post_message(self.Chosen(self.marked))
        elif self._rows:
            self.post_message(self.Chosen([self._rows[self.cursor].run]))

    def action_play(self) -> None:
        if self._rows:
            self.post_message(self.Chosen([self._rows[self.cursor].run], play=True))

    def action_mark(self) -> None:
        if not self._rows:
            return
        name = self._rows[self.cursor].run
        if name in self.marked:
            self.marked.remove(name)
        elif len(self.marked) < MARKED:
            self.marked.append(name)
        else:
            self.app.notify(f"{MARKED} runs are marked, as many as an overlay shows", severity="warning")
        self.refresh()

    def on_click(self, event: Click) -> None:
        offset = event.get_content_offset(self)
        if offset is not None and offset.y > 0 and offset.y - 1 + self.scroll_offset.y < len(self._rows):
            self.move_to(offset.y - 1 + self.scroll_offset.y)
            if event.chain == 2:
                self.action_open()

    def move_to(self, cursor: int) -> None:
        self.cursor = max(0, min(cursor, len(self._rows) - 1))
        self._keep_cursor_visible()
        self.refresh()
        self._tell()

    def _tell(self) -> None:
        self.post_message(self.Moved(self._rows[self.cursor] if self._rows else None))

    def _keep_cursor_visible(self) -> None:
        self.scroll_to_region(Region(0, self.cursor, 1, 2), animate=False, force=True)

    def render_line(self, y: int) -> Strip:
        width = self.scrollable_content_region.width
        names = max((cell_len(row.run) for row in self._rows), default=0)
        if y == 0:
            return self.strip(heading(width, names))
        number = y - 1 + self.scroll_offset.y
        if number >= len(self._rows):
            hint = "nothing matches; escape shows all" if self.filter else "no runs"
            return self.strip(row(width, [(hint, "dim")] if number == 0 and not self._rows else []))
        run_row = self._rows[number]
        sign = glyph(self.marked.index(run_row.run))[0] if run_row.run in self.marked else ""
        drawn = line(run_row, datetime.now(UTC), width, names, marked=sign)
        return self.strip(drawn, picked=number == self.cursor and self.has_focus)
