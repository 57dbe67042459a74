"""Base classes of the widgets: rows of styled text, redrawn where they differ, and panels."""

from __future__ import annotations

from abc import abstractmethod
from collections.abc import Callable, Sequence
from typing import TYPE_CHECKING, ClassVar, Generic, TypeVar

from rich.segment import Segment
from rich.style import Style
from textual.events import Click
from textual.geometry import Region, Size
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widget import Widget

from oven_tui.model.braille_chart import Run
from oven_tui.model.cell_text import COLOURS, row
from oven_tui.model.monitor_view import MonitorView

TEXT = ("blank", "text", "dim", "strong", "title", "good", "warn", "bad", "drill", "cursor", "cross")
DOTS = ("line", "raw", "broken", "change")
KINDS = (*TEXT, *DOTS)
PAINTS = {f"paint--{kind}" for kind in (*KINDS, *(f"agent-{n}" for n in range(COLOURS)))}
"""A component class for each kind of text (styles.tcss)."""

Row = TypeVar("Row")

if TYPE_CHECKING:
    _Base = Widget
else:
    _Base = object  # as a Widget it would stand before the other base and hide that one's defaults


class Painted(_Base):
    """Mixin for a widget with the component classes PAINTS: turns runs of text into strips."""

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._paints: dict[str, Style] = {}

    def paint(self, kind: str) -> Style:
        """Return the style of a kind, kept until the theme changes. Textual forgets it with every refresh."""
        if kind not in self._paints:
            self._paints[kind] = self.get_component_rich_style(f"paint--{kind}")
        return self._paints[kind]

    def strip(self, runs: list[Run], *, picked: bool = False) -> Strip:
        chosen = self.paint("cursor")
        over = Style(bgcolor=chosen.bgcolor, reverse=chosen.reverse) if picked else Style.null()
        return Strip([Segment(text, self.paint(kind) + over) for text, kind in runs])


class Panel(_Base):
    """The last base of a widget that shows a part of the view. The application sets `view` and calls `redraw`."""

    view: MonitorView

    @abstractmethod
    def redraw(self) -> None:
        """Draw what changed in the view since the last call."""


class Lines(Painted, Widget):
    """Redraws row by row, so that only differences go to the terminal."""

    COMPONENT_CLASSES: ClassVar[set[str]] = PAINTS

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.drawn_rows: list[list[Run]] = []

    @abstractmethod
    def rows(self, width: int, height: int) -> list[list[Run]]:
        """Return the content: a list of runs per row."""

    def redraw(self) -> None:
        width, height = self.content_size
        if not width or not height:
            return
        before, self.drawn_rows = self.drawn_rows, self.rows(width, height)
        if len(before) != len(self.drawn_rows):
            self.refresh()
            return
        changed = [y for y, (old, new) in enumerate(zip(before, self.drawn_rows, strict=True)) if old != new]
        if changed:
            self.refresh(*(Region(0, y, width, 1) for y in changed))

    def on_resize(self) -> None:
        self.drawn_rows = []
        self.redraw()

    def render_line(self, y: int) -> Strip:
        if y >= len(self.drawn_rows):
            return Strip.blank(self.content_size.width, self.rich_style)
        return self.strip(self.drawn_rows[y])


class Drawing(Lines):
    """A picture in a page that scrolls: as high as its rows are at the page's width."""

    DEFAULT_CSS = "Drawing { height: auto; }"

    def __init__(self, draw: Callable[[int], list[list[Run]]], *, id: str | None = None) -> None:
        """`draw` makes the rows for a width."""
        super().__init__(id=id)
        self._draw = draw

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._draw(width))

    def rows(self, width: int, height: int) -> list[list[Run]]:
        return [row(width, runs) for runs in self._draw(width)]


class RowList(Painted, ScrollView, Generic[Row], can_focus=True):
    """A list with a cursor. Only visible rows are drawn."""

    COMPONENT_CLASSES: ClassVar[set[str]] = PAINTS
    head_rows = 0
    """Rows above the first one of the list."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.shown_rows: Sequence[Row] = []
        self.cursor = 0

    @abstractmethod
    def line(self, item: Row, width: int) -> list[Run]:
        """Return the text of one row."""

    def hint(self) -> str:
        return ""

    def head(self, width: int) -> list[Run]:
        return []

    def show(self, rows: Sequence[Row], cursor: int) -> None:
        """Show these rows, with the cursor on one of them."""
        self.shown_rows, self.cursor = rows, max(0, min(cursor, len(rows) - 1))
        self.on_resize()
        self.refresh()

    def chosen(self) -> Row | None:
        return self.shown_rows[self.cursor] if self.cursor < len(self.shown_rows) else None

    def move_to(self, cursor: int) -> None:
        before, self.cursor = self.cursor, max(0, min(cursor, len(self.shown_rows) - 1))
        self._keep_cursor_visible()
        for number in {before, self.cursor}:
            self.refresh_line(number + self.head_rows)

    def on_resize(self) -> None:
        self.virtual_size = Size(self.size.width, len(self.shown_rows) + self.head_rows)
        self._keep_cursor_visible()

    def _keep_cursor_visible(self) -> None:
        self.scroll_to_region(Region(0, self.cursor, 1, 1 + self.head_rows), animate=False, force=True)

    def action_open(self) -> None:
        """Open the row under the cursor."""

    def action_move(self, by: int) -> None:
        self.move_to(self.cursor + by)

    def action_page(self, by: int) -> None:
        self.move_to(self.cursor + by * max(1, self.size.height - 1 - self.head_rows))

    def action_first(self) -> None:
        self.move_to(0)

    def action_last(self) -> None:
        self.move_to(len(self.shown_rows) - 1)

    def on_click(self, event: Click) -> None:
        offset = event.get_content_offset(self)
        number = -1 if offset is None else offset.y + self.scroll_offset.y - self.head_rows
        if offset is not None and offset.y >= self.head_rows and number < len(self.shown_rows):
            self.move_to(number)
            if event.chain == 2:
                self.action_open()

    def render_line(self, y: int) -> Strip:
        number, width = y - self.head_rows + self.scroll_offset.y, self.scrollable_content_region.width
        if y < self.head_rows:
            return self.strip(self.head(width))
        if number >= len(self.shown_rows):
            return self.strip(row(width, [(self.hint(), "dim")] if number == 0 else []))
        picked = number == self.cursor and (self.has_focus or not self.can_focus)
        return self.strip(self.line(self.shown_rows[number], width), picked=picked)
