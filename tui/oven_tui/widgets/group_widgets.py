"""Widgets for sampled groups: a list of all groups, and a page with one group in full."""

from __future__ import annotations

from typing import ClassVar

from textual.geometry import Size
from textual.message import Message
from textual.scroll_view import ScrollView
from textual.strip import Strip

from oven_core.protocol.completion_messages import StoredGroup
from oven_runs.log.sampled_group_text import heading
from oven_tui.model.cell_text import clip, row
from oven_tui.model.completion_page import Line, lay_out_page, summary_row
from oven_tui.widgets.base_widgets import PAINT_CLASSES, PaintMixin, RowList


class GroupList(RowList[StoredGroup], can_focus=False):
    """The list of sampled groups, the newest last."""

    BORDER_TITLE = "sampled steps"

    class Moved(Message):
        """The user clicked on a row."""

    def move_to(self, cursor: int) -> None:
        super().move_to(cursor)
        self.post_message(self.Moved())

    def line(self, item: StoredGroup, width: int) -> Line:
        return summary_row(item.group, width)


class GroupPage(PaintMixin, ScrollView, can_focus=True):
    """The page with one group in full, which draws only the visible lines."""

    COMPONENT_CLASSES: ClassVar[set[str]] = PAINT_CLASSES

    def __init__(self) -> None:
        super().__init__(id="group")
        self._stored: StoredGroup | None = None
        self._message = "waiting for the first sample"
        self._side_by_side = False
        self._lines: list[Line] = []

    def show(self, stored: StoredGroup | None, side_by_side: bool, message: str) -> None:
        """Show a group, or the message if there is none."""
        is_other_group = stored is None or self._stored is None or stored.seq != self._stored.seq
        self._stored, self._side_by_side, self._message = stored, side_by_side, message
        self.border_title = heading(stored.group, stored.time) if stored else "completions"
        self._lay_out()
        if is_other_group:
            self.scroll_to(y=0, animate=False, force=True)

    def on_resize(self) -> None:
        self._lay_out()

    def render_line(self, y: int) -> Strip:
        number, width = y + self.scroll_offset.y, self.scrollable_content_region.width
        return self.strip(row(width, self._lines[number] if number < len(self._lines) else []))

    def _lay_out(self) -> None:
        width = self.scrollable_content_region.width
        if width <= 0:
            return
        self._lines = [[(clip(self._message, width), "dim")]]
        if self._stored is not None:
            self._lines = lay_out_page(self._stored.group, width, side_by_side=self._side_by_side)
        self.virtual_size = Size(width, len(self._lines))
        self.refresh()
