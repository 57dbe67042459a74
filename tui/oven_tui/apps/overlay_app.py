"""The application that overlays two to four live or finished runs."""

from __future__ import annotations

import math
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.widgets import Footer

from oven_core.protocol.events import Event
from oven_runs.access.run_access import RunAccess
from oven_tui.appearance import Appearance
from oven_tui.key_bindings import bindings
from oven_tui.model import braille_chart
from oven_tui.model import overlaid_runs as overlay
from oven_tui.model.monitor_view import MonitorView
from oven_tui.model.overlaid_runs import AxisUnit, OverlaidRun, RunAxis
from oven_tui.screens.help import HelpScreen
from oven_tui.themed_app import ThemedApp
from oven_tui.widgets.overlay_chart import Legend, OverlayChart
from oven_tui.widgets.plot import WINDOWS

MAX_CHARTS = 4
WIDE_COLUMNS = 100
"""Minimum width, in columns, for four charts in two rows. Narrower terminals show two charts, one per row."""


class OverlayApp(ThemedApp[None]):
    TITLE = "Oven Controller: overlay"
    paint_s = 0.25  # longer than for one run
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = bindings("overlay")

    def __init__(
        self,
        accesses: Sequence[RunAccess],
        *,
        names: Sequence[str] = (),
        appearance: Appearance | None = None,
        axis_unit: AxisUnit = "step",
    ) -> None:
        """Tests pass `names` instead of `accesses`, and pass the events to `add_events`."""
        super().__init__(appearance)
        self.HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (WIDE_COLUMNS, "-wide")]
        names = names or [access.run for access in accesses]
        self.runs = [OverlaidRun(name, index, MonitorView()) for index, name in enumerate(names)]
        self.axis_unit = axis_unit
        self.page = self.zoom = 0
        self._accesses = accesses

    def compose(self) -> ComposeResult:
        yield Legend(self.runs)
        with Container(id="overlay-charts"):
            for index in range(MAX_CHARTS):
                yield OverlayChart(self.runs, id=f"chart-{index}")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one(Legend).styles.height = len(self.runs)
        if self._accesses:
            self.call_after_refresh(self._start_reading)
        self.set_interval(1, self.paint)

    def _start_reading(self) -> None:
        from oven_tui.log_feed import LogFeed  # imported after the first paint, as in the monitor

        for index, access in enumerate(self._accesses):
            take, report = partial(self.add_events, index), partial(self.set_link, index)
            feed = LogFeed(access, take, report, show=partial(self.show_view, index))
            self.run_worker(feed.run(), exit_on_error=True)

    def add_events(self, index: int, events: list[Event]) -> None:
        for event in events:
            self.runs[index].view.feed(event)
        self.request_paint()

    def show_view(self, index: int, view: MonitorView) -> None:
        self.runs[index].view = view
        self.request_paint()

    def set_link(self, index: int, link: str, detail: str) -> None:
        if legend := self.find_widget(Legend):
            legend.links[self.runs[index].name] = (link, detail)
            self.request_paint()

    def paint(self) -> None:
        if (legend := self.find_widget(Legend)) is None:
            return
        now = datetime.now(UTC)
        for run in self.runs:
            last_time = run.view.run.last_time
            legend.silent_s[run.name] = max(0.0, (now - last_time).total_seconds()) if last_time else 0.0
        legend.redraw()
        metrics = overlay.curve_names(self.runs)
        charts_per_row = 2 if self.size.width >= WIDE_COLUMNS else 1
        charts_per_page = 2 * charts_per_row
        page = self.page % max(1, math.ceil(len(metrics) / charts_per_page))
        axes = {run.name: RunAxis(run.view, self.axis_unit) for run in self.runs}
        first, last = self._axis_range(max(axis.end for axis in axes.values()))
        for index, chart in enumerate(self.screen_stack[0].query(OverlayChart)):
            position = page * charts_per_page + index
            chart.display = index < charts_per_page
            chart.axis_row = index >= charts_per_page - charts_per_row  # the bottom row labels the axis
            chart.axis_unit, chart.axes, chart.first, chart.last = self.axis_unit, axes, first, last
            chart.metric = metrics[position] if position < len(metrics) else None
            chart.redraw()

    def _axis_range(self, newest: int) -> tuple[int, int]:
        window = WINDOWS[self.zoom]
        if window is None or newest <= window:
            is_running = any(run.view.run.ended is None for run in self.runs)
            return 0, braille_chart.axis_end(0, newest, None if is_running else newest)
        return newest - window, newest

    def action_axis(self) -> None:
        self.axis_unit = "tick" if self.axis_unit == "step" else "step"
        self.paint()

    def action_metrics(self, offset: int) -> None:
        self.page += offset
        self.paint()

    def action_zoom(self, offset: int) -> None:
        self.zoom = max(0, min(len(WINDOWS) - 1, self.zoom + offset))
        self.paint()

    def action_save(self) -> None:
        self.save_picture("overlay", self._accesses[0] if self._accesses else None)

    def action_help(self) -> None:
        self.push_screen(HelpScreen(("overlay",)))
