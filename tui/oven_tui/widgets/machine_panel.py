"""The panel of speed and machine: tokens per second, parts of a step's time, memory and GPUs."""

from __future__ import annotations

from textual.geometry import Size

from oven_tui.model.braille_chart import Run
from oven_tui.model.cell_text import row
from oven_tui.model.machine import Machine
from oven_tui.model.monitor_view import MonitorView
from oven_tui.widgets.base import Lines, Panel


class MachinePanel(Lines, Panel):
    """As many rows as there are measurements; without any there is no heading either."""

    def __init__(self, view: MonitorView) -> None:
        super().__init__(id="machine")
        self.view = view
        self.border_title = "machine"
        self._rows_drawn = -1

    def get_content_height(self, container: Size, viewport: Size, width: int) -> int:
        return len(Machine.from_view(self.view).rows(width))

    def redraw(self) -> None:
        rows = len(Machine.from_view(self.view).rows(max(1, self.content_size.width)))
        if rows != self._rows_drawn:
            self._rows_drawn = rows
            self.set_class(rows > 0, "-said")
            self.refresh(layout=True)
        super().redraw()

    def rows(self, width: int, height: int) -> list[list[Run]]:
        return [row(width, runs) for runs in Machine.from_view(self.view).rows(width)[:height]]
