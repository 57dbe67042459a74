"""The panel of decisions: a list that renders only visible rows, the newest last. It follows the newest until the user
moves up."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.cells import cell_len
from textual.binding import BindingType
from textual.message import Message

from oven_core.protocol.messages import Decision
from oven_runs.log.command_result import CommandResult
from oven_runs.log.run_summary import format_value
from oven_tui.bindings import bindings
from oven_tui.model.braille_chart import Run
from oven_tui.model.cell_text import FATES, fit, glyph, row
from oven_tui.model.commands_given import object_of, progress_text, sign_of, value_of
from oven_tui.model.consequences import countdown, remaining
from oven_tui.model.decisions import Decided, Entry, Note, Open, as_json, label, matching, tick_of
from oven_tui.model.monitor_view import MonitorView
from oven_tui.widgets.base import Panel, RowList

AGENT, ACTUATOR, CHANGE, FATE = 16, 19, 15, 13
"""Cells of the columns."""
ALL = 9 + AGENT + ACTUATOR + CHANGE + FATE + 4
"""Cells of step, sign, columns and the gaps between them."""
SHORT_AGENT, SHORT_CHANGE = 12, 9
"""Cells to which two of the columns shrink on a list that is narrower."""
WORDS = 12
"""Cells below which the reason is only on the decision's page: the start of a word says nothing."""


class Decisions(RowList[Entry], Panel):
    BINDINGS: ClassVar[list[BindingType]] = bindings("decisions")

    class Chosen(Message):
        def __init__(self, entry: Entry) -> None:
            super().__init__()
            self.entry = entry

    class Moved(Message):
        """Another row is chosen."""

    def __init__(self, view: MonitorView) -> None:
        super().__init__(id="decisions")
        self.view = view
        self.filter = ""
        self.follows = True
        self._drawn: tuple[object, ...] = ()
        self._watched = ""
        self.border_title = "decisions"

    def redraw(self) -> None:
        """Show the view's present list. Costs nothing if the list did not change."""
        counts_down = self.view.run.tick if self.view.open or self.view.run.advised else 0
        drawn = (id(self.view), self.view.list_version(), self.filter, tuple(self.view.agents), counts_down)
        if drawn == self._drawn:
            return
        self._drawn = drawn
        here = self.chosen()
        rows = self.view.rows()
        if self.filter:
            rows = list(filter(matching(self.filter), rows))
        cursor = len(rows) - 1 if self.follows else self.cursor
        if not self.follows and here is not None:
            cursor = _place_of(_name(here), rows, cursor)
        if (watched := _place_of(self._watched, rows, -1)) >= 0:
            cursor, self.follows = watched, False
        self.show(rows, cursor)
        run = self.view.run
        shown = f", {len(rows)} shown by {self.filter!r}" if self.filter else ""
        counts = run.decision_counts()
        if self.view.preview:
            counts = "the newest; those before are being read"
        self.border_title = f"decisions: {counts}, {len(self.view.open)} open{shown}"

    @property
    def chosen_tick(self) -> int | None:
        """The tick at which the chosen row took effect, closed or opened; None while the list follows the newest."""
        entry = None if self.follows else self.chosen()
        return tick_of(entry) if entry is not None else None

    def stand_on(self, command: str) -> None:
        """Stay on a command's row, despite newer rows, until it is released or the user moves."""
        self._watched = command

    def stands_on(self, command: str) -> bool:
        """Return whether a command's row is visible because the list stays on it."""
        return self._watched == command and _place_of(command, self.shown_rows, -1) >= 0

    def leave(self, command: str) -> None:
        """Follow the newest again, if the list still stays there."""
        if self._watched == command:
            self.tail()

    def tail(self) -> None:
        self.follows = True
        self.action_last()

    def action_half(self, by: int) -> None:
        self.move_to(self.cursor + by * max(1, self.size.height // 2))

    def action_copy(self) -> None:
        """Copy the row as JSON to the terminal's clipboard, over ssh too."""
        if (entry := self.chosen()) is not None:
            result = self.view.commands.by_id.get(entry.command) if isinstance(entry, Note) else None
            self.app.copy_to_clipboard(as_json(entry, result.fields() if result is not None else None))
            self.app.notify(f"{label(entry)}: copied as JSON", timeout=3)

    def action_open(self) -> None:
        if (entry := self.chosen()) is not None:
            self.post_message(self.Chosen(entry))

    def move_to(self, cursor: int) -> None:
        self._watched = ""
        super().move_to(cursor)
        self.follows = self.cursor >= len(self.shown_rows) - 1
        self.post_message(self.Moved())

    def hint(self) -> str:
        return "nothing matches; escape shows all" if self.filter else "no decision yet"

    def line(self, item: Entry, width: int) -> list[Run]:
        match item:
            case Note() if (result := self.view.commands.by_id.get(item.command)) is not None:
                return self._command(item, result, width)
            case Note():
                words: list[Run] = [(f"{item.author}: {item.text}", "dim")]
                return row(width, [(f"{item.step:>5}  ", "dim"), *words])
            case Open():
                opened = item.opened
                closes = remaining(self.view, opened.closes_at_tick)
                votes = f"{len(item.votes)} of {len(opened.eligible)} have voted; closes in {closes}"
                change = f"→ {format_value(opened.proposal)}"
                return self._ballot(item, opened.opened_by, opened.actuator, change, ("◌ open", "warn"), votes, width)
            case Decided():
                decision = item.decision
                change = f"{format_value(decision.before)} → {format_value(decision.value)}"
                if item.receipt and item.fate == "applied":
                    change = f"{format_value(item.receipt.before)} → {format_value(item.receipt.after)}"
                sign, words_, kind = FATES[item.fate]
                why = item.receipt.reason if item.receipt and item.receipt.reason else decision.reason
                if item.fate == "advised":
                    sign, words_, kind, why = self._advice(decision, why)
                fate = (f"{sign} {words_}", kind)
                if (under_way := self.view.commands.under_way(decision.id)) is not None:
                    fate, why = sign_of(under_way), f"{under_way.command.action}: {progress_text(under_way)}"
                return self._ballot(item, item.proposer, decision.actuator, change, fate, why, width)

    def _advice(self, decision: Decision, why: str) -> tuple[str, str, str, str]:
        """Return sign, words, kind of text, and the time left for approval."""
        if self.view.run.advised.get(decision.actuator) is not decision:
            return "–", "set aside", "dim", why
        lapsed = self.view.run.lapsed(decision)
        sign, words, kind = ("–", "lapsed", "dim") if lapsed else FATES["advised"]
        return sign, words, kind, f"{countdown(self.view, decision)}; {why}"

    def _command(self, note: Note, result: CommandResult, width: int) -> list[Run]:
        command, why = result.command, progress_text(result)
        on = result.decision.actuator if command.subject_id and result.decision is not None else object_of(command)
        what = " ".join(part for part in (command.action, value_of(command)) if part)
        why += f" ({command.reason})" if command.reason and command.reason not in why else ""
        author = (note.author.removeprefix("operator "), "strong")
        return _columns(
            note.step, ("⚑", "warn"), author, on or "the run", (what, "strong"), sign_of(result), why, width
        )

    def _ballot(
        self, entry: Decided | Open, agent: str, actuator: str, change: str, fate: Run, why: str, width: int
    ) -> list[Run]:
        sign = glyph(self.view.agents.index(agent)) if agent in self.view.agents else (" ", "dim")
        quiet = isinstance(entry, Decided) and entry.fate in ("rejected", "would set")
        words = (agent, "dim" if quiet else "text")
        return _columns(entry.step, sign, words, actuator, (change, "dim" if quiet else "strong"), fate, why, width)


def _columns(step: int, sign: Run, who: Run, on: str, what: Run, fate: Run, why: str, width: int) -> list[Run]:
    name_width, change_width = _widths(width)
    cells: list[Run] = [
        (f"{step:>5}  ", "dim"),
        (f"{sign[0]} ", sign[1]),
        (fit(who[0], name_width) + " ", who[1]),
        (fit(on, ACTUATOR) + " ", who[1] if who[1] == "dim" else "text"),
        (fit(what[0], change_width) + " ", what[1]),
        (fit(fate[0], FATE) + " ", fate[1]),
    ]
    room = width - sum(cell_len(words) for words, _ in cells)
    return row(width, [*cells, (why, "dim")] if room >= WORDS or cell_len(why) <= room else cells)


def _widths(width: int) -> tuple[int, int]:
    """Return the cells of the agent's name and of the change for a list's width."""
    missing = max(0, ALL - width)
    change = max(SHORT_CHANGE, CHANGE - missing)
    return max(SHORT_AGENT, AGENT - max(0, missing - (CHANGE - change))), change


def _place_of(name: str, rows: Sequence[Entry], default: int) -> int:
    """Return the position of the newest row with that name, which is the same for a ballot and its decision."""
    newest_first = range(len(rows) - 1, -1, -1) if name else ()
    return next((number for number in newest_first if _name(rows[number]) == name), default)


def _name(entry: Entry) -> str:
    match entry:
        case Decided():
            return entry.decision.ballot or entry.decision.id
        case Open():
            return entry.opened.id
        case Note():
            return entry.command or str(entry.seq)
