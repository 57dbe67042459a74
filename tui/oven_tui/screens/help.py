"""Pages to read, and the help: the keys, from the table of commands, and the dashboard's signs."""

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

from oven_tui.bindings import bindings, key_line, key_words
from oven_tui.model.cell_text import FATES
from oven_tui.model.commands import COMMANDS, GROUPS, Scope, commands_in

LINES = 3
"""Rows per key press."""
SIGNS = (
    ("⣀⠤⠒", "dots dim: as measured, the least and greatest of each column; bright: moving average over 20 points"),
    ("×", "not a number, or infinite: the curve has a gap there"),
    ("┊", "a decision came into force; its head is the sign of the agent that proposed it"),
    ("⚑", "an operator's command"),
    *((sign, f"decision {words}") for sign, words, _ in FATES.values()),
)

BOARD: Final[tuple[Scope, ...]] = ("monitor", "decisions")
"""The monitor's own scopes."""


class PaperScreen(ModalScreen[None]):
    """The base of read-only pages, which a key closes. The content is in a container with the id `paper`."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("paper")

    def action_move(self, by: int) -> None:
        self.query_one("#paper").scroll_relative(y=by * LINES, animate=False)


class HelpScreen(PaperScreen):
    BINDINGS: ClassVar[list[BindingType]] = bindings("help")

    def __init__(self, scopes: Sequence[Scope] = BOARD) -> None:
        """`scopes` are those whose commands are shown. If two have a key, the later one's command is shown."""
        super().__init__()
        self._scopes = scopes

    def compose(self) -> ComposeResult:
        signs = _grid()
        for sign, meaning in SIGNS:
            signs.add_row(Text(sign, style="bold"), Text(meaning))
        filters = Text(
            "agent:NAME  actuator:NAME  step:N-M  or any words, as regular expressions; ! before one turns it round"
        )
        with VerticalScroll(id="paper") as paper:
            paper.border_title = "help"
            paper.border_subtitle = key_line("paper")
            yield Static(Group(*_keys(self._scopes), _head("Filter"), filters, _head("Signs"), signs))


def _keys(scopes: Sequence[Scope]) -> list[RenderableType]:
    """Return every command of these scopes with its keys, under the heading of its group."""
    parts: list[RenderableType] = []
    owner = {key: command for scope in scopes for command in commands_in(scope) for key in command.key_names()}
    active = {command.id for command in owner.values()}
    for group in GROUPS:
        grid = _grid()
        for command in COMMANDS:
            if command.group == group and command.id in active:
                grid.add_row(Text(key_words(command), style="bold"), Text(command.help))
        if grid.row_count:
            parts += [_head(group), grid]
    return parts


def _head(words: str) -> Text:
    return Text(f"\n{words}", style="bold underline")


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=12, no_wrap=True)
    grid.add_column()
    return grid
