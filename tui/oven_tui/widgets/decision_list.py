"""The panel of decisions: a list with the newest decision last. It follows the newest until the user moves up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual.binding import BindingType
from textual.message import Message

from oven_core.protocol.messages import Decision
from oven_runs.log.command_result import CommandResult
from oven_runs.log.decision_line import change_text, main_reason
from oven_runs.log.run_summary import format_value
from oven_tui.key_bindings import bindings
from oven_tui.model.cell_text import FATE_LABELS, TextRun, fit, glyph, row
from oven_tui.model.command_progress import progress_text, stage_text, subject_text, value_text
from oven_tui.model.consequences import describe_expiry, format_time_until
from oven_tui.model.decision_entries import DecisionEntry, Entry, Note, OpenBallot, as_json, label, matching, tick_of
from oven_tui.model.monitor_view import MonitorView
from oven_tui.widgets.base_widgets import Panel, RowList

AGENT_CELLS, KNOB_CELLS, CHANGE_CELLS, FATE_CELLS = 16, 19, 15, 13
"""Width of the columns."""
FULL_WIDTH = 9 + AGENT_CELLS + KNOB_CELLS + CHANGE_CELLS + FATE_CELLS + 4
"""Width of a row without the reason: step and symbol, the full columns, and four gaps."""
MIN_AGENT_CELLS, MIN_CHANGE_CELLS = 12, 9
"""Minimum width of the two columns that shrink in a narrow list."""
MIN_REASON_CELLS = 12
"""Minimum cells for a truncated reason. If fewer are free, only the decision's page shows the reason."""


class DecisionList(RowList[Entry], Panel):
    BINDINGS: ClassVar[list[BindingType]] = bindings("decisions")

    class Chosen(Message):
        def __init__(self, entry: Entry) -> None:
            super().__init__()
            self.entry = entry

    class Moved(Message):
        """The cursor has moved to another row."""

    def __init__(self, view: MonitorView) -> None:
        super().__init__(id="decisions")
        self.view = view
        self.filter = ""
        self.follows_newest = True
        self._drawn_key: tuple[object, ...] = ()
        self._pinned_command = ""
        self.border_title = "decisions"

    def redraw(self) -> None:
        """Show the view's current list. Do nothing if the list has not changed."""
        countdown_tick = self.view.run.tick if self.view.open_ballots or self.view.run.advised else 0
        content_key = (id(self.view), self.view.list_version(), self.filter, tuple(self.view.agents), countdown_tick)
        if content_key == self._drawn_key:
            return
        self._drawn_key = content_key
        selected_entry = self.selected()
        rows = self.view.rows()
        if self.filter:
            rows = list(filter(matching(self.filter), rows))
        cursor = len(rows) - 1 if self.follows_newest else self.cursor
        if not self.follows_newest and selected_entry is not None:
            cursor = _index_of(_entry_id(selected_entry), rows, cursor)
        if (pinned_row := _index_of(self._pinned_command, rows, -1)) >= 0:
            cursor, self.follows_newest = pinned_row, False
        self.show(rows, cursor)
        run = self.view.run
        filter_text = f", {len(rows)} match {self.filter!r}" if self.filter else ""
        counts = "only the newest until the log is read" if self.view.is_preview else run.decision_counts()
        self.border_title = f"decisions: {counts}, {len(self.view.open_ballots)} open{filter_text}"

    @property
    def selected_tick(self) -> int | None:
        """Return the tick of the selected row, or None while the list follows the newest."""
        entry = None if self.follows_newest else self.selected()
        return tick_of(entry) if entry is not None else None

    def pin_to(self, command: str) -> None:
        """Keep the cursor on a command's row, despite newer rows, until `unpin` or until the user moves it."""
        self._pinned_command = command

    def is_pinned_to(self, command: str) -> bool:
        """Return whether the cursor is pinned to this command's row."""
        return self._pinned_command == command and _index_of(command, self.shown_rows, -1) >= 0

    def unpin(self, command: str) -> None:
        """Follow the newest row again, if the cursor is still pinned to this command."""
        if self._pinned_command == command:
            self.tail()

    def tail(self) -> None:
        self.follows_newest = True
        self.action_last()

    def action_half(self, offset: int) -> None:
        self.move_to(self.cursor + offset * max(1, self.size.height // 2))

    def action_copy(self) -> None:
        """Copy the row as JSON to the terminal's clipboard, which also works over ssh."""
        if (entry := self.selected()) is not None:
            result = self.view.commands.by_id.get(entry.command) if isinstance(entry, Note) else None
            self.app.copy_to_clipboard(as_json(entry, result.fields() if result is not None else None))
            self.app.notify(f"copied {label(entry)} as JSON", timeout=3)

    def action_open(self) -> None:
        if (entry := self.selected()) is not None:
            self.post_message(self.Chosen(entry))

    def move_to(self, cursor: int) -> None:
        self._pinned_command = ""
        super().move_to(cursor)
        self.follows_newest = self.cursor >= len(self.shown_rows) - 1
        self.post_message(self.Moved())

    def hint(self) -> str:
        return "nothing matches; press escape to show all" if self.filter else "no decision yet"

    def line(self, item: Entry, width: int) -> list[TextRun]:
        match item:
            case Note() if (result := self.view.commands.by_id.get(item.command)) is not None:
                return self._command_row(item, result, width)
            case Note():
                return row(width, [(f"{item.step:>5}  ", "dim"), (f"{item.author}: {item.text}", "dim")])
            case OpenBallot():
                opened = item.opened
                time_left = format_time_until(self.view, opened.closes_at_tick)
                votes = f"{len(item.votes)} of {len(opened.eligible)} have voted; closes in {time_left}"
                change = f"→ {format_value(opened.proposal)}"
                fate = ("◌ open", "warn")
                return self._decision_row(item, opened.opened_by, opened.actuator, change, fate, votes, width)
            case DecisionEntry():
                decision = item.decision
                change = change_text(decision.before, decision.value)
                if item.receipt and item.fate == "applied":
                    change = change_text(item.receipt.before, item.receipt.after)
                symbol, words, kind = FATE_LABELS[item.fate]
                reason = item.receipt.reason if item.receipt and item.receipt.reason else main_reason(decision)
                if item.fate == "advised":
                    symbol, words, kind, reason = self._advice_cells(decision, reason)
                fate = (f"{symbol} {words}", kind)
                if (result := self.view.commands.newest_unfinished(decision.id)) is not None:
                    fate, reason = stage_text(result), f"{result.command.action}: {progress_text(result)}"
                return self._decision_row(item, item.proposer, decision.actuator, change, fate, reason, width)

    def _advice_cells(self, decision: Decision, reason: str) -> tuple[str, str, str, str]:
        """Return symbol, label, kind of text, and the reason with the time left for approval."""
        if self.view.run.advised.get(decision.actuator) is not decision:
            return "–", "superseded", "dim", reason
        lapsed = self.view.run.has_lapsed(decision)
        symbol, words, kind = ("–", "lapsed", "dim") if lapsed else FATE_LABELS["advised"]
        return symbol, words, kind, f"{describe_expiry(self.view, decision)}; {reason}"

    def _command_row(self, note: Note, result: CommandResult, width: int) -> list[TextRun]:
        command, reason = result.command, progress_text(result)
        subject = subject_text(command)
        if command.subject_id and result.decision is not None:
            subject = result.decision.actuator
        action = " ".join(part for part in (command.action, value_text(command)) if part)
        reason += f" ({command.reason})" if command.reason and command.reason not in reason else ""
        symbol, author, change = ("⚑", "warn"), (note.author.removeprefix("operator "), "strong"), (action, "strong")
        return _columns(note.step, symbol, author, subject or "the run", change, stage_text(result), reason, width)

    def _decision_row(
        self, entry: Entry, agent: str, actuator: str, change: str, fate: TextRun, reason: str, width: int
    ) -> list[TextRun]:
        symbol = glyph(self.view.agents.index(agent)) if agent in self.view.agents else (" ", "dim")
        has_no_effect = isinstance(entry, DecisionEntry) and entry.fate in ("rejected", "would set")
        name = (agent, "dim" if has_no_effect else "text")
        change_cell = (change, "dim" if has_no_effect else "strong")
        return _columns(entry.step, symbol, name, actuator, change_cell, fate, reason, width)


def _columns(
    step: int, symbol: TextRun, name: TextRun, actuator: str, change: TextRun, fate: TextRun, reason: str, width: int
) -> list[TextRun]:
    name_width, change_width = _widths(width)
    cells: list[TextRun] = [
        (f"{step:>5}  ", "dim"),
        (f"{symbol[0]} ", symbol[1]),
        (fit(name[0], name_width) + " ", name[1]),
        (fit(actuator, KNOB_CELLS) + " ", name[1] if name[1] == "dim" else "text"),
        (fit(change[0], change_width) + " ", change[1]),
        (fit(fate[0], FATE_CELLS) + " ", fate[1]),
    ]
    free_cells = width - sum(cell_len(words) for words, _ in cells)
    shows_reason = free_cells >= MIN_REASON_CELLS or cell_len(reason) <= free_cells
    return row(width, [*cells, (reason, "dim")] if shows_reason else cells)


def _widths(width: int) -> tuple[int, int]:
    """Return the widths of the columns with the agent's name and the change."""
    missing_cells = max(0, FULL_WIDTH - width)
    change_width = max(MIN_CHANGE_CELLS, CHANGE_CELLS - missing_cells)
    still_missing = max(0, missing_cells - (CHANGE_CELLS - change_width))
    return max(MIN_AGENT_CELLS, AGENT_CELLS - still_missing), change_width


def _index_of(entry_id: str, rows: Sequence[Entry], default: int) -> int:
    """Return the position of the newest row with this id, or `default`. A ballot and its decision have the same id."""
    newest_first = range(len(rows) - 1, -1, -1) if entry_id else ()
    return next((number for number in newest_first if _entry_id(rows[number]) == entry_id), default)


def _entry_id(entry: Entry) -> str:
    match entry:
        case DecisionEntry():
            return entry.decision.ballot or entry.decision.id
        case OpenBallot():
            return entry.opened.id
        case Note():
            return entry.command or str(entry.seq)
