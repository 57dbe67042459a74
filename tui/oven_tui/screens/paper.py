"""The base of read-only pages over the dashboard: they scroll, and a key leads back."""

from __future__ import annotations

from typing import ClassVar

from textual.binding import BindingType
from textual.screen import ModalScreen

from oven_tui.bindings import bindings

LINES = 3
"""Rows per key press."""


class PaperScreen(ModalScreen[None]):
    """Its content is in a scrolling container with the id `paper`."""

    BINDINGS: ClassVar[list[BindingType]] = bindings("paper")

    def action_move(self, by: int) -> None:
        self.query_one("#paper").scroll_relative(y=by * LINES, animate=False)
