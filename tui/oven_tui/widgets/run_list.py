"""The list of runs: a table that renders only visible rows, the newest run first."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import ClassVar

from rich.cells import cell_len
from textual.binding import BindingType
from textual.message import Message

from oven_runs.log.run_row import RunRow
from oven_tui.bindings import bindings
from oven_tui.model.braille_chart import Run
from oven_tui.model.cell_text import glyph
from oven_tui.model.run_table import heading, line, matching
from oven_tui.widgets.base import RowList

MARKED = 4
"""Maximum marked runs: as many as an overlay shows."""


class RunList(RowList[RunRow]):
    BINDINGS: ClassVar[list[BindingType]] = bindings("runs")
    head_rows = 1

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
        self.marked: list[str] = []

    def show_rows(self, rows: Sequence[RunRow]) -> None:
        """Show new rows. The cursor stays on its run."""
        here = self.chosen()
        self.all = list(rows)
        names = {row.run for row in rows}
        self.marked = [name for name in self.marked if name in names]
        shown = list(filter(matching(self.filter, datetime.now(UTC)), rows))
        same = (number for number, row in enumerate(shown) if here is not None and row.run == here.run)
        self.show(shown, next(same, self.cursor))
        self.post_message(self.Moved(self.chosen()))

    def put_cursor(self, run: str) -> None:
        names = [run_row.run for run_row in self.shown_rows]
        if run in names:
            self.move_to(names.index(run))

    def move_to(self, cursor: int) -> None:
        super().move_to(cursor)
        self.post_message(self.Moved(self.chosen()))

    def action_open(self) -> None:
        if len(self.marked) > 1:
            self.post_message(self.Chosen(self.marked))
        elif (chosen := self.chosen()) is not None:
            self.post_message(self.Chosen([chosen.run]))

    def action_play(self) -> None:
        if (chosen := self.chosen()) is not None:
            self.post_message(self.Chosen([chosen.run], play=True))

    def action_mark(self) -> None:
        if (chosen := self.chosen()) is None:
            return
        name = chosen.run
        if name in self.marked:
            self.marked.remove(name)
        elif len(self.marked) < MARKED:
            self.marked.append(name)
        else:
            self.app.notify(f"{MARKED} runs are marked, as many as an overlay shows", severity="warning")
        self.refresh()

    def head(self, width: int) -> list[Run]:
        return heading(width, self._name_cells())

    def hint(self) -> str:
        return "nothing matches; escape shows all" if self.filter else "no runs"

    def line(self, item: RunRow, width: int) -> list[Run]:
        sign = glyph(self.marked.index(item.run))[0] if item.run in self.marked else ""
        return line(item, datetime.now(UTC), width, self._name_cells(), marked=sign)

    def _name_cells(self) -> int:
        return max((cell_len(run_row.run) for run_row in self.shown_rows), default=0)
