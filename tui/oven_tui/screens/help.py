"""A screen with the keys, read from the bindings, and the signs that the dashboard uses."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.console import Group
from rich.table import Table
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.containers import VerticalScroll
from textual.screen import ModalScreen
from textual.widgets import Static

from oven_tui.model.cell_text import FATES

SIGNS = (
    ("⣀⠤⠒", "dots dim: as measured, the least and greatest of each column; bright: moving average over 20 points"),
    ("×", "not a number, or infinite: the curve has a gap there"),
    ("┊", "a decision came into force; its head is the sign of the agent that proposed it"),
    ("⚑", "an operator's command"),
    *((sign, f"decision {words}") for sign, words, _ in FATES.values()),
)


class HelpScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = [
        Binding("escape,question_mark,q", "dismiss", "Back", id="help.back", tooltip="Back to the run"),
    ]

    def __init__(self, bindings: Sequence[Binding]) -> None:
        super().__init__()
        self._keys = bindings

    def compose(self) -> ComposeResult:
        keys = _grid()
        for binding in self._keys:
            names = " ".join(self.app.get_key_display(part) for part in _parts(binding))
            keys.add_row(Text(names, style="bold"), Text(binding.tooltip or binding.description))
        signs = _grid()
        for sign, meaning in SIGNS:
            signs.add_row(Text(sign, style="bold"), Text(meaning))
        filters = Text(
            "agent:NAME  actuator:NAME  step:N-M  or any words, as regular expressions; ! before one turns it round"
        )
        with VerticalScroll(id="paper") as paper:
            paper.border_title = "help"
            paper.border_subtitle = "escape: back"
            yield Static(Group(keys, Text("\nFilter", style="bold"), filters, Text("\nSigns", style="bold"), signs))


def _parts(binding: Binding) -> list[Binding]:
    return [Binding(key.strip(), binding.action, key_display=binding.key_display) for key in binding.key.split(",")]


def _grid() -> Table:
    grid = Table.grid(padding=(0, 2, 0, 0))
    grid.add_column(width=12, no_wrap=True)
    grid.add_column()
    return grid
