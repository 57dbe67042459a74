"""Base classes of the widgets: rows of styled text, lists with a cursor, pictures and panels."""

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

from oven_tui.model.cell_text import COLOURS, TextRun, row
from oven_tui.model.monitor_view import MonitorView

TEXT_KINDS = ("blank", "text", "dim", "strong", "title", "good", "warn", "bad", "drill", "cursor", "cross")
CURVE_KINDS = ("line", "raw", "broken", "change")
KINDS = (*TEXT_KINDS, *CURVE_KINDS)
PAINT_CLASSES = {f"paint--{kind}" for kind in (*KINDS, *(f"agent-{n}" for n in range(COLOURS)))}
"""The component classes for all kinds of text. Their styles are in styles.tcss."""

Row = TypeVar("Row")

if TYPE_CHECKING:
    _Base = Widget
else:
    _Base = object  # a Widget here would override defaults of the other base class


class PaintMixin(_Base):
    """Mixin that converts styled text to strips. The widget needs the component classes PAINT_CLASSES."""

    def notify_style_update(self) -> None:
        super().notify_style_update()
        self._cached_styles: dict[str, Style] = {}

    def find_style(self, kind: str) -> Style:
        """Return the style of a kind of text. It is cached until the theme changes; Textual's cache is shorter."""
        if kind not in self._cached_styles:
            self._cached_styles[kind] = self.get_component_rich_style(f"paint--{kind}")
        return self._cached_styles[kind]

    def strip(self, runs: list[TextRun], *, is_selected: bool = False) -> Strip:
        """Return styled text as a strip, with the cursor's background if selected."""
        cursor = self.find_style("cursor")
        overlay = Style(bgcolor=cursor.bgcolor, reverse=cursor.reverse) if is_selected else Style.null()
        return Strip([Segment(text, self.find_style(kind) + overlay) for text, kind in runs])


class Panel(_Base):
    """Mixin for a panel, listed last among the base classes. The application sets `view` and calls `redraw`."""

    view: MonitorView

    @abstractmethod
    def redraw(self) -> None:
        """Draw the changes since the last call."""


class Lines(PaintMixin, Widget):
    """A widget with rows of text. Only changed rows are sent to the terminal."""

    COMPONENT_CLASSES: ClassVar[set[str]] = PAINT_CLASSES

    def __init__(self, *, id: str | None = None) -> None:
        super().__init__(id=id)
        self.drawn_rows: list[list[TextRun]] = []

    @abstractmethod
    def rows(self, width: int, height: int) -> list[list[TextRun]]:
        """Return the content as rows of styled text."""

    def redraw(self) -> None:
        width, height = self.content_size
        if not width or not height:
            return
        before, self.drawn_rows = self.drawn_rows, self.rows(width, height)
        if len(before) != len(self.drawn_rows):
            self.refresh()
            return
        changed_rows = [y for y, (old, new) in enumerate(zip(before, self.drawn_rows, strict=True)) if old != new]
        if changed_rows:
            self.refresh(*(Region(0, y, width, 1) for y in changed_rows))

    def on_resize(self) -> None:
        self.drawn_rows = []
        self.redraw()

    def render_line(self, y: int) -> Strip:
        if y >= len(self.drawn_rows):
            return Strip.blank(self.content_size.width, self.rich_style)
        return self.strip(self.drawn_rows[y])


class Picture(Lines):
    """A picture on a page. Its height is the number of its rows at the page's width."""

    DEFAULT_CSS = "Picture { height: auto; }"

    def __init__(self, draw: Callable[[int], list[list[TextRun]]], *, id: str | None = None) -> None:
        """`draw` returns the rows for a width."""
        super().__init__(id=id)
        self._draw = draw

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._draw(width))

    def rows(self, width: int, height: int) -> list[list[TextRun]]:
        return [row(width, runs) for runs in self._draw(width)]


class RowList(PaintMixin, ScrollView, Generic[Row], can_focus=True, inherit_bindings=False):
    """A list with a cursor, which draws only the visible rows. The keys of ScrollView would hide the list's own."""

    COMPONENT_CLASSES: ClassVar[set[str]] = PAINT_CLASSES
    head_rows = 0
    """Number of heading rows above the list."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.shown_rows: Sequence[Row] = []
        self.cursor = 0

    @abstractmethod
    def line(self, item: Row, width: int) -> list[TextRun]:
        """Return the text of one row."""

    def hint(self) -> str:
        """Return the text for an empty list."""
        return ""

    def head(self, width: int) -> list[TextRun]:
        return []

    def show(self, rows: Sequence[Row], cursor: int) -> None:
        """Show these rows, with the cursor at this position."""
        self.shown_rows, self.cursor = rows, max(0, min(cursor, len(rows) - 1))
        self.on_resize()
        self.refresh()

    def selected(self) -> Row | None:
        return self.shown_rows[self.cursor] if self.cursor < len(self.shown_rows) else None

    def move_to(self, cursor: int) -> None:
        before, self.cursor = self.cursor, max(0, min(cursor, len(self.shown_rows) - 1))
        self._keep_cursor_visible()
        for number in {before, self.cursor}:
            self.refresh_line(number + self.head_rows)

    def on_resize(self) -> None:
        virtual_size = Size(self.size.width, len(self.shown_rows) + self.head_rows)
        is_longer = virtual_size.height > self.size.height and virtual_size.width == self.virtual_size.width
        if is_longer and self.show_vertical_scrollbar:
            # Only the scrollbar changes. Setting `virtual_size` would compute the layout of the whole screen.
            self.set_reactive(Widget.virtual_size, virtual_size)
            self.vertical_scrollbar.window_virtual_size = virtual_size.height
        else:
            self.virtual_size = virtual_size
        self._keep_cursor_visible()

    def _keep_cursor_visible(self) -> None:
        self.scroll_to_region(Region(0, self.cursor, 1, 1 + self.head_rows), animate=False, force=True)

    def action_open(self) -> None:
        """Open the row under the cursor."""

    def action_move(self, offset: int) -> None:
        self.move_to(self.cursor + offset)

    def action_page(self, offset: int) -> None:
        self.move_to(self.cursor + offset * max(1, self.size.height - 1 - self.head_rows))

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
        is_selected = number == self.cursor and (self.has_focus or not self.can_focus)
        return self.strip(self.line(self.shown_rows[number], width), is_selected=is_selected)
