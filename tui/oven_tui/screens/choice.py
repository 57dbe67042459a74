"""A list to choose one entry from: a knob, an agent, a snapshot, a level."""

from __future__ import annotations

from collections.abc import Sequence
from typing import ClassVar

from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import OptionList
from textual.widgets.option_list import Option

from oven_core.terminal_text import clean
from oven_tui.bindings import bindings, key_line
from oven_tui.model.choices import Choice


class ChoiceScreen(ModalScreen[str | None]):
    """Ends with the chosen id; None if the user leaves it."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("choice")

    def __init__(self, title: str, choices: Sequence[Choice]) -> None:
        super().__init__()
        self._title = title
        self.choices = choices

    def compose(self) -> ComposeResult:
        with Vertical(id="question") as box:
            box.border_title = clean(self._title)
            box.border_subtitle = key_line("choice")
            width = max((len(choice.name) for choice in self.choices), default=0)
            yield OptionList(*(Option(_prompt(choice, min(width, 36))) for choice in self.choices))

    def on_option_list_option_selected(self, message: OptionList.OptionSelected) -> None:
        self.dismiss(self.choices[message.option_index].id)

    def action_move(self, by: int) -> None:
        options = self.query_one(OptionList)
        options.action_cursor_down() if by > 0 else options.action_cursor_up()

    def action_choose(self) -> None:
        """Choose the first entry if the list is not drawn yet."""
        options = next(iter(self.query(OptionList)), None)
        self.dismiss(self.choices[(options.highlighted if options is not None else 0) or 0].id)

    def action_leave(self) -> None:
        self.dismiss(None)


def _prompt(choice: Choice, width: int) -> Text:
    return Text.assemble((clean(choice.name).ljust(width) + "  ", "bold"), (clean(choice.detail), "dim"))
