"""An application that overlays two to four runs, live or ended. Like the monitor, it only reads."""

from __future__ import annotations

import time
from collections.abc import Sequence
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.widgets import Footer

from oven_core.protocol.events import Event
from oven_runs.access.run_access import RunAccess
from oven_tui.appearance import Appearance
from oven_tui.bindings import bindings
from oven_tui.model import braille_chart
from oven_tui.model import overlaid_runs as overlay
from oven_tui.model.monitor_view import MonitorView
from oven_tui.model.overlaid_runs import Axis, By, Overlaid
from oven_tui.screens.help import HelpScreen
from oven_tui.themed_app import ThemedApp
from oven_tui.widgets.overlay_chart import Legend, OverlayChart

PAINT_S = 0.25
"""Least seconds between two paints: rarer than for one run."""
CHARTS = 4
WIDE = 100
"""Columns from which four charts are shown, two abreast. Below it there are two, one under the other."""
WINDOWS = (None, 1000, 300, 100, 30)
"""Steps or ticks to show: all, or the newest."""


class OverlayApp(ThemedApp[None]):
    TITLE = "Oven Controller: overlay"
    ENABLE_COMMAND_PALETTE = False
    BINDINGS: ClassVar[list[BindingType]] = bindings("overlay")

    def __init__(
        self,
        accesses: Sequence[RunAccess],
        *,
        names: Sequence[str] = (),
        appearance: Appearance | None = None,
        by: By = "step",
    ) -> None:
        """`names` replaces `accesses` in tests, which read the runs themselves and call `take`."""
        super().__init__(appearance)
        self.HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (WIDE, "-wide")]
        names = names or [access.run for access in accesses]
        self.runs = [Overlaid(name, index, MonitorView()) for index, name in enumerate(names)]
        self.by = by
        self.pages = self.zoom = 0
        self._accesses = accesses
        self._painted, self._due = 0.0, False

    def compose(self) -> ComposeResult:
        yield Legend(self.runs)
        with Container(id="overlay-charts"):
            for index in range(CHARTS):
                yield OverlayChart(self.runs, id=f"chart-{index}")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.dress()
        self.query_one(Legend).styles.height = len(self.runs)
        if self._accesses:
            self.call_after_refresh(self._read)
        self.set_interval(1, self.paint)

    def _read(self) -> None:
        from oven_tui.feed import Feed  # after the first paint, as in the monitor

        for index, access in enumerate(self._accesses):
            callbacks = (partial(self.take, index), partial(self.say, index), partial(self.show_view, index))
            self.run_worker(Feed(access, *callbacks).run(), exit_on_error=True)

    def take(self, index: int, events: list[Event]) -> None:
        """Add new events of a run's log, in order."""
        for event in events:
            self.runs[index].view.feed(event)
        self._soon()

    def show_view(self, index: int, view: MonitorView) -> None:
        """Show another view of a run from now on: a preview of a long log, or all of it."""
        self.runs[index].view = view
        self._soon()

    def say(self, index: int, link: str, detail: str) -> None:
        """Show the state of the connection to a run."""
        if legend := self._legend():
            legend.links[self.runs[index].name] = (link, detail)
            self._soon()

    def _legend(self) -> Legend | None:
        return next(iter(self.screen_stack[0].query(Legend)), None) if self.screen_stack else None

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            self.set_timer(max(0.001, self._painted + PAINT_S - time.monotonic()), self.paint)

    def paint(self) -> None:
        """Redraw what changed in every widget."""
        if (legend := self._legend()) is None:
            return
        self._due, self._painted = False, time.monotonic()
        now = datetime.now(UTC)
        for run in self.runs:
            last_time = run.view.run.last_time
            legend.silent_s[run.name] = max(0.0, (now - last_time).total_seconds()) if last_time else 0.0
        legend.redraw()
        names = overlay.charted(self.runs)
        across = 2 if self.size.width >= WIDE else 1
        shown = 2 * across
        page = self.pages % max(1, -(-len(names) // shown))
        axes = {run.name: Axis(run.view, self.by) for run in self.runs}
        first, last = self._window(max(axis.end for axis in axes.values()))
        for index, chart in enumerate(self.screen_stack[0].query(OverlayChart)):
            position = page * shown + index
            chart.display = index < shown
            chart.axis_row = index >= shown - across
            chart.by, chart.axes, chart.first, chart.last = self.by, axes, first, last
            chart.metric = names[position] if position < len(names) else None
            chart.redraw()

    def _window(self, newest: int) -> tuple[int, int]:
        window = WINDOWS[self.zoom]
        if window is None or newest <= window:
            return 0, braille_chart.span(0, newest, None if self._under_way() else newest)
        return newest - window, newest

    def _under_way(self) -> bool:
        return any(run.view.run.ended is None for run in self.runs)

    def action_axis(self) -> None:
        self.by = "tick" if self.by == "step" else "step"
        self.paint()

    def action_metrics(self, by: int) -> None:
        self.pages += by
        self.paint()

    def action_zoom(self, by: int) -> None:
        self.zoom = max(0, min(len(WINDOWS) - 1, self.zoom + by))
        self.paint()

    def action_save(self) -> None:
        folder = self._accesses[0].export_folder if self._accesses else Path.cwd()
        try:
            path = self.save_screenshot(f"overlay-{datetime.now():%m%d-%H%M%S}.svg", str(folder))
        except OSError as error:
            self.notify(f"not saved: {error.strerror} ({folder})", severity="error")
            return
        self.notify(f"saved {path}")

    def action_help(self) -> None:
        self.push_screen(HelpScreen(("overlay",)))
