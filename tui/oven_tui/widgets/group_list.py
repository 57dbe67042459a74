"""The list of sampled groups, a row each."""

from __future__ import annotations

from typing import ClassVar

from textual.geometry import Size
from textual.scroll_view import ScrollView
from textual.strip import Strip

from oven_core.protocol.completion_messages import StoredGroup
from oven_tui.model.completion_page import summary
from oven_tui.widgets.base import PAINTS, Painted


class GroupList(Painted, ScrollView, can_focus=False):
    """A row for each sampled group, the newest last."""

    COMPONENT_CLASSES: ClassVar[set[str]] = PAINTS

    def __init__(self) -> None:
        super().__init__(id="groups")
        self.rows: list[StoredGroup] = []
        self.cursor = 0
        self.border_title = "sampled steps"

    def show(self, rows: list[StoredGroup], cursor: int) -> None:
        """Show these groups, with one of them chosen."""
        self.rows, self.cursor = rows, cursor
        self.virtual_size = Size(self.size.width, len(rows))
        self.scroll_to(y=max(0, cursor - self.size.height // 2), animate=False, force=True)
        self.refresh()

    def render_line(self, y: int) -> Strip:
        number, width = y + self.scroll_offset.y, self.scrollable_content_region.width
        if number >= len(self.rows):
            return Strip.blank(width, self.rich_style)
        return self.strip(summary(self.rows[number].group, width), picked=number == self.cursor)
