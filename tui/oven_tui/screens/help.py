"""The help page, which explains keys, filters and symbols, and the base class of text pages."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar, Final

from rich.console import Group, RenderableType
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from oven_tui.key_bindings import bindings, key_line, key_text
from oven_tui.model.cell_text import FATE_LABELS
from oven_tui.model.commands import COMMANDS, GROUPS, Scope, commands_in
from oven_tui.model.decision_entries import Fate

SCROLL_ROWS = 3
"""Rows by which a key press scrolls."""
FATE_MEANINGS: Final[dict[Fate, str]] = {
    "pending": "adopted; the learner has not confirmed it yet",
    "applied": "applied",
    "noop": "adopted, but the knob already had this value",
    "failed": "adopted, but not applied",
    "rejected": "rejected",
    "would set": "would have been adopted, but the mesh only observes",
    "advised": "waits for an operator's approval",
    "approved": "approved by an operator",
}
SYMBOLS = (
    ("⣀⠤⠒", "dim: minimum and maximum of the measured values per column; bright: moving average over 20 points"),
    ("×", "not a number, or infinite; the curve has a gap there"),
    ("┊", "a decision took effect; the symbol at the top is that of the agent that proposed it"),
    ("⚑", "an operator's command"),
    *((FATE_LABELS[fate][0], meaning) for fate, meaning in FATE_MEANINGS.items()),
)
PARTICIPANTS = (
    ("prop", "changes that the agent proposed"),
    ("agst", "its votes against changes"),
    ("back", "adopted changes that it voted for"),
    ("rep", "its reputation, which weighs its votes; red below the rules' minimum"),
    ("reply", "time that it took to vote on another agent's newest change"),
)
"""The headings of the panel of participants."""
MONITOR_SCOPES: Final[tuple[Scope, ...]] = ("monitor", "decisions")
"""The scopes of the monitor itself."""


class TextScreen(ModalScreen[None]):
    """Base class of text pages, which a key closes. The content is in a container with the id `paper`."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("paper")

    def action_move(self, offset: int) -> None:
        self.query_one("#paper").scroll_relative(y=offset * SCROLL_ROWS, animate=False)


class HelpScreen(TextScreen):
    BINDINGS: ClassVar[list[BindingType]] = bindings("help")

    def __init__(self, scopes: Sequence[Scope] = MONITOR_SCOPES) -> None:
        """`scopes` selects the commands. If two scopes use the same key, the later scope takes precedence."""
        super().__init__()
        self._scopes = scopes

    def compose(self) -> ComposeResult:
        symbols, participants = _grid(), _grid()
        for grid, rows in ((symbols, SYMBOLS), (participants, PARTICIPANTS)):
            for symbol, meaning in rows:
                grid.add_row(Text(symbol, style="bold"), Text(meaning))
        filters = Text("agent:NAME  actuator:NAME  step:N-M  or words, which are regular expressions; ! negates a word")
        with VerticalScroll(id="paper") as paper:
            paper.border_title = "help"
            paper.border_subtitle = key_line("paper")
            parts = (*_list_keys(self._scopes), _heading("Filter"), filters, _heading("Symbols"), symbols)
            yield Static(Group(*parts, _heading("Participants"), participants))


def _list_keys(scopes: Sequence[Scope]) -> list[RenderableType]:
    """Return the commands of these scopes with their keys, grouped under headings."""
    parts: list[RenderableType] = []
    by_key = {key: command for scope in scopes for command in commands_in(scope) for key in command.key_names()}
    active_ids = {command.id for command in by_key.values()}
    for group in GROUPS:
        grid = _grid()
        for command in COMMANDS:
            if command.group == group and command.id in active_ids:
                grid.add_row(Text(key_text(command), style="bold"), Text(command.help))
        if grid.row_count:
            parts += [_heading(group), grid]
    return parts


def _heading(words: str) -> Text:
    return Text(f"\n{words}", style="bold underline")


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=12, no_wrap=True)
    grid.add_column()
    return grid
