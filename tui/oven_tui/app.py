"""The monitor's application: it feeds the view and has the widgets redraw a few times per second.

The run knows nothing of it: it only reads.
"""

from __future__ import annotations

import gc
import time
from collections.abc import AsyncIterator, Callable, Sequence
from datetime import UTC, datetime
from pathlib import Path
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from textual.app import App, ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.widgets import Footer, Input

from oven_tui.bindings import CommandPalette, bindings
from oven_tui.model import braille_chart
from oven_tui.model.monitor_view import MonitorView
from oven_tui.model.sampled_groups import SampledGroups
from oven_tui.screens.completions import CompletionScreen
from oven_tui.screens.decision_detail import DecisionScreen
from oven_tui.screens.help import HelpScreen
from oven_tui.widgets.agents import Agents
from oven_tui.widgets.base import Panel
from oven_tui.widgets.chart import Axis, Chart
from oven_tui.widgets.decision_list import Decisions
from oven_tui.widgets.header import About, Header

if TYPE_CHECKING:
    from oven_controller.protocol.completion_messages import StoredGroup
    from oven_controller.protocol.events import Event
    from oven_controller.runs.folder import RunFolder

MakePanel: TypeAlias = Callable[[MonitorView], Panel]
PANELS: Final[tuple[MakePanel, ...]] = (Agents, Decisions)
"""The panels beside the charts, in their order: a new one is a widget and an entry here. A panel's height is its
widget's: `DEFAULT_CSS` of its class, or styles.tcss."""
PAINT_S = 0.15
"""Least time between two paints: at most seven a second."""
CHARTS = 4
WIDE, TALL = 150, 32
"""Cells from which on the lists stand beside the charts, and the charts take half of the height."""
WINDOWS = (None, 1000, 300, 100, 30)
"""Ticks shown: all, or the newest."""


class MonitorApp(App[None]):
    CSS_PATH = "styles.tcss"
    TITLE = "Oven Controller"
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = bindings("monitor")
    COMMANDS: ClassVar[set[Any]] = {CommandPalette}

    def __init__(
        self,
        about: About,
        folder: RunFolder | None = None,
        *,
        light: bool = False,
        panels: Sequence[MakePanel] = PANELS,
    ) -> None:
        """`folder` None: nothing is read, and somebody else calls `take` (tests)."""
        super().__init__()
        self.HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (WIDE, "-wide")]
        self.VERTICAL_BREAKPOINTS = [(0, "-low"), (TALL, "-tall")]
        self.view = MonitorView()
        self.shown = self.view
        """What the widgets draw: the view, or a copy of it from when it was frozen."""
        self.sampled = SampledGroups()
        """Sampled completions, once somebody has asked for them."""
        self.about = about
        self.pages = 0
        self.zoom = 0
        self._folder = folder
        self._panels: list[Panel] = []
        self._panel_kinds = panels
        self._painted = 0.0
        self._due = False
        self._theme = "textual-light" if light else "textual-dark"

    def compose(self) -> ComposeResult:
        yield Header(self.about, self.shown)
        with Container(id="board"):
            with Container(id="charts"):
                for place in range(CHARTS):
                    yield Chart(self.shown, id=f"chart-{place}", axis_row=place >= CHARTS // 2)
            with Container(id="lists"):
                self._panels = [make(self.shown) for make in self._panel_kinds]
                yield from self._panels
        yield Input(placeholder="agent:lr actuator:lr_scale step:10-90 !rejected", id="filter")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.theme = self._theme
        self.query_one(Decisions).focus()
        if self._folder is not None:
            self.call_after_refresh(self._read)
        self.set_interval(1, self._tick)

    def _read(self) -> None:
        from oven_tui.feed import Feed  # after the first paint: the bus takes as long to import as all the rest

        assert self._folder is not None
        self.run_worker(Feed(self._folder, self.take, self.say).run(), exit_on_error=True)

    def take(self, events: list[Event]) -> None:
        """New events of the log, in order."""
        for event in events:
            self.view.feed(event)
        self._soon()

    def say(self, link: str, detail: str) -> None:
        """What the connection is doing."""
        header = self._header()
        if header is not None and header.link != (link, detail):
            header.link = (link, detail)
            self._soon()

    def silent_s(self) -> float:
        """Seconds since the last event was stored; clocks that disagree make it 0 at the least."""
        last = self.view.run.last_time
        return max(0.0, (datetime.now(UTC) - last).total_seconds()) if last else 0.0

    def _soon(self) -> None:
        if not self._due:
            self._due = True
            self.set_timer(max(0.001, self._painted + PAINT_S - time.monotonic()), self.paint)

    def _tick(self) -> None:
        if (header := self._header()) is not None:
            header.silent_s = self.silent_s()
            header.redraw()

    def _header(self) -> Header | None:
        """None while the monitor closes: the screen and its widgets go before the timers."""
        return next(iter(self.screen_stack[0].query(Header)), None) if self.screen_stack else None

    def paint(self) -> None:
        """Have every widget redraw what changed."""
        if (header := self._header()) is None:
            return
        self._due, first = False, not self._painted
        self._painted = time.monotonic()
        board = self.screen_stack[0]
        header.view, header.silent_s = self.shown, self.silent_s()
        header.behind = None if self.shown is self.view else self.view.run.seq - self.shown.run.seq
        header.redraw()
        names = self.shown.charted()
        pages = max(1, -(-len(names) // CHARTS))
        page = self.pages % pages
        axis = self._axis()
        for place, chart in enumerate(board.query(Chart)):
            at = page * CHARTS + place
            chart.view, chart.axis, chart.metric = self.shown, axis, names[at] if at < len(names) else None
            chart.redraw()
        for panel in self._panels:
            panel.view = self.shown
            panel.redraw()
        if first:
            gc.collect()
            gc.freeze()  # what start-up made stays: the collector need not look at it with every paint

    def _axis(self) -> Axis:
        tick, window = self.shown.newest_tick(), WINDOWS[self.zoom]
        if window is None or tick <= window:
            return Axis(0, braille_chart.span(0, tick, self.shown.end_tick()))
        return Axis(tick - window, tick)

    def on_decisions_chosen(self, message: Decisions.Chosen) -> None:
        self.push_screen(DecisionScreen(message.entry))

    def action_completions(self) -> None:
        self.push_screen(CompletionScreen(self.sampled, self._samples if self._folder is not None else None))

    async def _samples(self) -> AsyncIterator[list[StoredGroup]]:
        from oven_tui.completion_feed import sampled_groups  # the bus: see _read

        assert self._folder is not None
        async for groups in sampled_groups(self._folder):
            yield groups

    def action_freeze(self) -> None:
        self.shown = self.view.frozen() if self.shown is self.view else self.view
        self.paint()

    def action_tail(self) -> None:
        self.shown = self.view
        self.paint()
        self.query_one(Decisions).tail()

    def action_metrics(self, by: int) -> None:
        self.pages += by
        self.paint()

    def action_zoom(self, by: int) -> None:
        self.zoom = max(0, min(len(WINDOWS) - 1, self.zoom + by))
        self.paint()

    def action_filter(self) -> None:
        box = self.query_one("#filter", Input)
        box.add_class("-open")
        box.focus()

    def action_unfilter(self) -> None:
        self.query_one("#filter", Input).value = ""
        self._close_filter()

    def on_input_changed(self, message: Input.Changed) -> None:
        decisions = self.query_one(Decisions)
        decisions.filter = message.value.strip()
        decisions.redraw()

    def on_input_submitted(self) -> None:
        self._close_filter()

    def _close_filter(self) -> None:
        self.query_one("#filter", Input).remove_class("-open")
        self.query_one(Decisions).focus()

    def action_light(self) -> None:
        self.theme = "textual-dark" if self.theme == "textual-light" else "textual-light"

    def action_save(self) -> None:
        folder = self._folder.path if self._folder is not None else Path.cwd()
        try:
            path = self.save_screenshot(f"monitor-{datetime.now():%m%d-%H%M%S}.svg", str(folder))
        except OSError as error:
            self.notify(f"not saved: {error.strerror} ({folder})", severity="error")
            return
        self.notify(f"saved {path}")

    def action_help(self) -> None:
        self.push_screen(HelpScreen())
