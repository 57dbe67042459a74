"""A screen for a terminal that is too small to show a run."""

from __future__ import annotations

from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.screen import ModalScreen
from textual.widgets import Static

LEAST_COLUMNS, LEAST_ROWS = 40, 12
"""Cells below which charts and lists are cut to nothing; 80 by 24 shows all."""


class TooSmall(ModalScreen[None]):
    """Disappears when the terminal grows."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "app.quit", "Close", show=False)]

    def compose(self) -> ComposeResult:
        yield Static(self._words(), id="too-small", markup=False)

    def on_resize(self, event: Resize) -> None:
        self.query_one(Static).update(self._words())

    def _words(self) -> str:
        size = self.app.size
        least = f"{LEAST_COLUMNS}x{LEAST_ROWS}"
        return f"{size.width}x{size.height} cells are too few: enlarge the terminal to 80x24, at least {least}"
