"""The list of runs, the newest run first. It draws only the visible rows."""

from __future__ import annotations

from collections.abc import Sequence
from datetime import UTC, datetime
from typing import ClassVar

from rich.cells import cell_len
from textual.binding import BindingType
from textual.message import Message

from oven_runs.log.run_row import RunRow
from oven_tui.key_bindings import bindings
from oven_tui.model.cell_text import TextRun, glyph
from oven_tui.model.overlaid_runs import MAX_RUNS
from oven_tui.model.run_table import heading, line, matching
from oven_tui.widgets.base_widgets import RowList


class RunList(RowList[RunRow]):
    BINDINGS: ClassVar[list[BindingType]] = bindings("runs")
    head_rows = 1

    class Chosen(Message):
        """The user selected one run, or several runs for an overlay."""

        def __init__(self, runs: Sequence[str], *, play: bool = False) -> None:
            super().__init__()
            self.runs = list(runs)
            self.play = play

    class Moved(Message):
        """The cursor has moved, or its row has changed."""

        def __init__(self, row: RunRow | None) -> None:
            super().__init__()
            self.row = row

    def __init__(self) -> None:
        super().__init__(id="runs")
        self.filter = ""
        self.marked: list[str] = []

    def show_rows(self, rows: Sequence[RunRow]) -> None:
        """Show these rows. The cursor stays on its run."""
        selected_run = self.selected()
        existing = {row.run for row in rows}
        self.marked = [name for name in self.marked if name in existing]
        matching_rows = list(filter(matching(self.filter, datetime.now(UTC)), rows))
        names = [row.run for row in matching_rows]
        if selected_run is not None and selected_run.run in names:
            self.show(matching_rows, names.index(selected_run.run))
        else:
            self.show(matching_rows, self.cursor)
        self.post_message(self.Moved(self.selected()))

    def put_cursor(self, run: str) -> None:
        names = [run_row.run for run_row in self.shown_rows]
        if run in names:
            self.move_to(names.index(run))

    def move_to(self, cursor: int) -> None:
        super().move_to(cursor)
        self.post_message(self.Moved(self.selected()))

    def action_open(self) -> None:
        if len(self.marked) > 1:
            self.post_message(self.Chosen(self.marked))
        elif (run := self.selected()) is not None:
            self.post_message(self.Chosen([run.run]))

    def action_play(self) -> None:
        if (run := self.selected()) is not None:
            self.post_message(self.Chosen([run.run], play=True))

    def action_mark(self) -> None:
        if (run := self.selected()) is None:
            return
        name = run.run
        if name in self.marked:
            self.marked.remove(name)
        elif len(self.marked) < MAX_RUNS:
            self.marked.append(name)
        else:
            self.app.notify(f"an overlay can show at most {MAX_RUNS} runs", severity="warning")
        self.refresh()

    def head(self, width: int) -> list[TextRun]:
        return heading(width, self._measure_longest_name())

    def hint(self) -> str:
        return "nothing matches; press escape to show all" if self.filter else "no runs"

    def line(self, item: RunRow, width: int) -> list[TextRun]:
        symbol = glyph(self.marked.index(item.run))[0] if item.run in self.marked else ""
        return line(item, datetime.now(UTC), width, self._measure_longest_name(), mark=symbol)

    def _measure_longest_name(self) -> int:
        return max((cell_len(run_row.run) for run_row in self.shown_rows), default=0)
