"""A picture in a page that scrolls: rows of styled text, as high as they are at the page's width."""

from __future__ import annotations

from collections.abc import Callable

from textual.geometry import Size

from oven_tui.model.braille_chart import Run
from oven_tui.model.cell_text import row
from oven_tui.widgets.base import Lines


class Drawing(Lines):
    DEFAULT_CSS = "Drawing { height: auto; }"

    def __init__(self, draw: Callable[[int], list[list[Run]]], *, id: str | None = None) -> None:
        """`draw` makes the rows for a width."""
        super().__init__(id=id)
        self._draw = draw

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(self._draw(width))

    def rows(self, width: int, height: int) -> list[list[Run]]:
        return [row(width, runs) for runs in self._draw(width)]
