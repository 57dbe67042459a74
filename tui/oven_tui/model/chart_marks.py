"""Marks on charts: where decisions took effect and operators acted, as cells of a common x-axis."""

from __future__ import annotations

from oven_tui.model.braille_chart import Axis, Mark
from oven_tui.model.cell_text import FATES, glyph
from oven_tui.model.monitor_view import MonitorView


class ChartMarks:
    """The marks of one view, computed once for all charts of one width."""

    def __init__(self) -> None:
        self._asked: tuple[object, ...] = ()
        self._found: dict[int, dict[int, Mark]] = {}

    def cells(self, view: MonitorView, axis: Axis, width: int) -> dict[int, Mark]:
        """Return cell → mark; the newest if several share a cell."""
        asked = (id(view), view.marked, len(view.agents), axis)
        if asked != self._asked:
            self._asked, self._found = asked, {}
        if width not in self._found:
            self._found[width] = _marks(view, axis, width)
        return self._found[width]


def _marks(view: MonitorView, axis: Axis, width: int) -> dict[int, Mark]:
    found: dict[int, Mark] = {}
    places = {name: place for place, name in enumerate(view.agents)}
    for tick, author, fate in view.marks.values():
        cell = axis.cell(tick, width)
        if cell is None:
            continue
        if fate == "operator":
            found[cell] = Mark("⚑", "warn")
        elif fate in ("failed", "pending"):
            found[cell] = Mark(FATES[fate][0], FATES[fate][2])  # type: ignore[index]
        else:
            found[cell] = Mark(*glyph(places.get(author, 0)))
    return found
