"""The question before a command is sent: what it would do, and the mesh's objection as the log stands now."""

from __future__ import annotations

from collections.abc import Callable
from typing import ClassVar

from rich.console import Group
from rich.text import Text
from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Vertical
from textual.screen import ModalScreen
from textual.widgets import Input, Static

from oven_core.terminal_text import clean
from oven_tui.bindings import bindings, key_line

AGAIN_S = 0.5
"""Seconds between two updates of the figures."""
REASON_LENGTH = 2000
"""Characters of a command's reason."""


class ConfirmScreen(ModalScreen[str | None]):
    """Ends with the typed reason, which may be empty; None if the user leaves it."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("confirm")
    AUTO_FOCUS = ""

    def __init__(self, title: str, tells: Callable[[], tuple[str, str]]) -> None:
        """`tells` returns the consequence, and the objection or an empty string."""
        super().__init__()
        self._title = title
        self._tells = tells
        self._reason = ""

    def compose(self) -> ComposeResult:
        with Vertical(id="question") as box:
            box.border_title = clean(self._title)
            box.border_subtitle = key_line("confirm")
            yield Static(id="consequence")
            yield Input(placeholder="why (it is in the log)", id="reason", max_length=REASON_LENGTH)

    def on_mount(self) -> None:
        self.tell()
        self.set_interval(AGAIN_S, self.tell)

    def tell(self) -> None:
        """Show the present figures."""
        consequence, against = self._tells()
        parts = [Text(clean(consequence))]
        if against:
            parts.append(Text(clean(against), style="bold red"))
        self.query_one("#consequence", Static).update(Group(*parts))

    def on_input_changed(self, message: Input.Changed) -> None:
        message.stop()
        self._reason = message.value.strip()

    def on_input_submitted(self, message: Input.Submitted) -> None:
        message.stop()
        self.action_answer(True)

    def action_reason(self) -> None:
        self.query_one("#reason").focus()

    def action_answer(self, yes: bool) -> None:
        if not yes and self.focused is not None:
            self.set_focus(None)
            return
        self.dismiss(self._reason if yes else None)
