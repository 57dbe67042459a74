"""Marks on charts: where decisions took effect and operators acted, as cells of a common x-axis."""

from __future__ import annotations

from oven_tui.model.braille_chart import Axis, Mark
from oven_tui.model.cell_text import FATES, glyph
from oven_tui.model.monitor_view import MonitorView


class ChartMarks:
    """The marks of one view, computed once for all charts of one width."""

    def __init__(self) -> None:
        self._key: tuple[object, ...] = ()
        self._cells: dict[int, dict[int, Mark]] = {}

    def cells(self, view: MonitorView, axis: Axis, width: int) -> dict[int, Mark]:
        """Return cell → mark; the newest if several share a cell."""
        key = (id(view), view.marked, len(view.agents), axis)
        if key != self._key:
            self._key, self._cells = key, {}
        if width not in self._cells:
            self._cells[width] = _marks(view, axis, width)
        return self._cells[width]


def _marks(view: MonitorView, axis: Axis, width: int) -> dict[int, Mark]:
    marks: dict[int, Mark] = {}
    places = {name: index for index, name in enumerate(view.agents)}
    for tick, author, fate in view.marks.values():
        cell = axis.cell(tick, width)
        if cell is None:
            continue
        if fate == "operator":
            marks[cell] = Mark("⚑", "warn")
        elif fate in ("failed", "pending"):
            marks[cell] = Mark(FATES[fate][0], FATES[fate][2])  # type: ignore[index]
        else:
            marks[cell] = Mark(*glyph(places.get(author, 0)))
    return marks
