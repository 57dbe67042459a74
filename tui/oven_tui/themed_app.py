"""The base of the monitor's applications: themes, replacements for what a terminal lacks, and paced painting."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import ClassVar, TypeVar

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.filter import LineFilter
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Static

from oven_runs.access.run_access import RunAccess
from oven_tui.appearance import OWN_THEMES, THEMES, Appearance

Result = TypeVar("Result")
Part = TypeVar("Part", bound=Widget)
LEAST_COLUMNS, LEAST_ROWS = 40, 12
"""Cells below which charts and lists are cut to nothing; 80 by 24 shows all."""


class TooSmall(ModalScreen[None]):
    """Covers the application while the terminal is too small to show a run."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "app.quit", "Close", show=False)]

    def compose(self) -> ComposeResult:
        yield Static(id="too-small", markup=False)

    def on_resize(self, event: Resize) -> None:
        size, least = event.size, f"{LEAST_COLUMNS}x{LEAST_ROWS}"
        words = f"{size.width}x{size.height} cells are too few: enlarge the terminal to 80x24, at least {least}"
        self.query_one(Static).update(words)


class ThemedApp(App[Result]):
    CSS_PATH = Path(__file__).with_name("styles.tcss")
    paint_s = 0.15
    """Least seconds between two paints: at most seven per second."""

    def __init__(self, appearance: Appearance | None = None) -> None:
        super().__init__()
        self.appearance = appearance or Appearance()
        self._painted, self._due = 0.0, False

    def on_mount(self) -> None:
        """Apply the chosen theme. Textual also calls the handlers of subclasses."""
        for theme in OWN_THEMES:
            self.register_theme(theme)
        self.theme = self.appearance.theme

    def paint(self) -> None:
        """Redraw what changed in every widget."""

    def soon(self) -> None:
        """Paint once `paint_s` have passed since the last paint."""
        if not self._due:
            self._due = True
            self.set_timer(max(0.001, self._painted + self.paint_s - time.monotonic()), self._paint_now)

    def _paint_now(self) -> None:
        self._due, self._painted = False, time.monotonic()
        self.paint()

    def part(self, kind: type[Part]) -> Part | None:
        """Return a widget of the first screen, even if a page covers it; None while the application closes, because
        screen and widgets go before the timers."""
        return next(iter(self.screen_stack[0].query(kind)), None) if self.screen_stack else None

    def save_picture(self, name: str, access: RunAccess | None) -> None:
        folder = access.export_folder if access is not None else Path.cwd()
        try:
            path = self.save_screenshot(f"{name}-{datetime.now():%m%d-%H%M%S}.svg", str(folder))
        except OSError as error:
            self.notify(f"not saved: {error.strerror} ({folder})", severity="error")
        else:
            self.notify(f"saved {path}")

    def on_resize(self, event: Resize) -> None:
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
