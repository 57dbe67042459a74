"""The base class of the monitor's applications, with themes, screenshots and a limited rate of painting."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import datetime
from pathlib import Path
from typing import ClassVar, TypeVar, cast

from textual.app import App, ComposeResult
from textual.binding import Binding, BindingType
from textual.events import Resize
from textual.filter import LineFilter
from textual.screen import ModalScreen
from textual.widget import Widget
from textual.widgets import Static

from oven_runs.access.run_access import RunAccess
from oven_tui.appearance import CUSTOM_THEMES, THEMES, Appearance

Result = TypeVar("Result")
WidgetType = TypeVar("WidgetType", bound=Widget)
MIN_COLUMNS, MIN_ROWS = 40, 12
"""Minimum terminal size in cells. In a smaller one, charts and lists would be empty. 80 by 24 shows everything."""


class TooSmallScreen(ModalScreen[None]):
    """Covers the application while the terminal is too small to show a run."""

    BINDINGS: ClassVar[list[BindingType]] = [Binding("q", "app.quit", "Close", show=False)]

    def compose(self) -> ComposeResult:
        yield Static(id="too-small", markup=False)

    def on_resize(self, event: Resize) -> None:
        size, minimum = event.size, f"{MIN_COLUMNS}x{MIN_ROWS}"
        advice = f"{size.width}x{size.height} cells are too few; enlarge the terminal to 80x24, or at least {minimum}"
        self.query_one(Static).update(advice)


class ThemedApp(App[Result]):
    """An application with the monitor's themes, which paints at most every `paint_s` seconds."""

    CSS_PATH = Path(__file__).with_name("styles.tcss")
    paint_s = 0.15
    """Minimum seconds between paints, which allows about seven per second."""

    def __init__(self, appearance: Appearance | None = None) -> None:
        super().__init__()
        self.appearance = appearance or Appearance()
        self._painted_at, self._paint_scheduled = 0.0, False
        self._widgets: dict[type[Widget], Widget] = {}
        """The results of `find_widget`."""

    def on_mount(self) -> None:
        """Apply the chosen theme. Textual also calls the handlers of subclasses."""
        for theme in CUSTOM_THEMES:
            self.register_theme(theme)
        self.theme = self.appearance.theme

    def paint(self) -> None:
        """Redraw the changed parts of every widget."""

    def request_paint(self) -> None:
        """Schedule a paint, at the earliest `paint_s` seconds after the last one."""
        if not self._paint_scheduled:
            self._paint_scheduled = True
            self.set_timer(max(0.001, self._painted_at + self.paint_s - time.monotonic()), self._paint_now)

    def _paint_now(self) -> None:
        self._paint_scheduled, self._painted_at = False, time.monotonic()
        self.paint()

    def find_widget(self, widget_class: type[WidgetType]) -> WidgetType | None:
        """Return the widget of this class on the first screen, even if a page covers it. Return None while the
        application closes, because timers may still run after the widgets are removed."""
        widget = self._widgets.get(widget_class)
        if widget is None or not widget.is_attached:
            widget = next(iter(self.screen_stack[0].query(widget_class)), None) if self.screen_stack else None
            if widget is None:
                return None
            self._widgets[widget_class] = widget
        return cast("WidgetType", widget)

    def save_picture(self, name: str, access: RunAccess | None) -> None:
        folder = access.export_folder if access is not None else Path.cwd()
        try:
            path = self.save_screenshot(f"{name}-{datetime.now():%m%d-%H%M%S}.svg", str(folder))
        except OSError as error:
            self.notify(f"cannot save to {folder}: {error.strerror}", severity="error")
        else:
            self.notify(f"saved {path}")

    def on_resize(self, event: Resize) -> None:
        is_too_small = event.size.width < MIN_COLUMNS or event.size.height < MIN_ROWS
        if is_too_small and not isinstance(self.screen, TooSmallScreen):
            self.push_screen(TooSmallScreen())
        elif not is_too_small and isinstance(self.screen, TooSmallScreen):
            self.pop_screen()

    def get_line_filters(self) -> Sequence[LineFilter]:
        return self.appearance.filters(super().get_line_filters(), self.no_color)

    def get_key_display(self, binding: Binding) -> str:
        key = super().get_key_display(binding)
        return "ret" if self.appearance.ascii and key == "⏎" else key

    def action_theme(self) -> None:
        index = THEMES.index(self.theme) if self.theme in THEMES else -1
        self.theme = THEMES[(index + 1) % len(THEMES)]
