"""The base of the monitor's applications: its themes, and replacements for colours and signs that a terminal lacks."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

from textual.app import App
from textual.binding import Binding
from textual.events import Resize
from textual.filter import LineFilter

from oven_tui.appearance import OWN_THEMES, THEMES, Appearance
from oven_tui.screens.too_small import LEAST_COLUMNS, LEAST_ROWS, TooSmall

Result = TypeVar("Result")


class ThemedApp(App[Result]):
    """Call `dress` when it is mounted."""

    CSS_PATH = Path(__file__).with_name("styles.tcss")

    def __init__(self, appearance: Appearance | None = None) -> None:
        super().__init__()
        self.appearance = appearance or Appearance()

    def dress(self) -> None:
        """Apply the chosen theme."""
        for theme in OWN_THEMES:
            self.register_theme(theme)
        self.theme = self.appearance.theme

    def on_resize(self, event: Resize) -> None:
        """Say so while the terminal is too small to show anything."""
        small = event.size.width < LEAST_COLUMNS or event.size.height < LEAST_ROWS
        if small and not isinstance(self.screen, TooSmall):
            self.push_screen(TooSmall())
        elif not small and isinstance(self.screen, TooSmall):
            self.pop_screen()

    def get_line_filters(self) -> Sequence[LineFilter]:
        return self.appearance.filters(super().get_line_filters(), self.no_color)

    def get_key_display(self, binding: Binding) -> str:
        shown = super().get_key_display(binding)
        return "ret" if self.appearance.ascii and shown == "⏎" else shown

    def action_theme(self) -> None:
        here = THEMES.index(self.theme) if self.theme in THEMES else -1
        self.theme = THEMES[(here + 1) % len(THEMES)]
