"""The monitor's application. It updates the view from the log and redraws the widgets a few times per second. It
affects the run only through the commands of ActingApp, which need `--control`."""

from __future__ import annotations

import gc
from collections.abc import Callable, Sequence
from datetime import UTC, datetime
from functools import partial
from typing import TYPE_CHECKING, Any, ClassVar, Final, TypeAlias

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.containers import Container
from textual.widgets import Footer

from oven_runs.access.local_run import LocalRun
from oven_tui.acting_app import ActingApp
from oven_tui.appearance import Appearance
from oven_tui.key_bindings import CommandPalette, bindings
from oven_tui.model.console_buffer import ConsoleBuffer
from oven_tui.model.monitor_view import MonitorView
from oven_tui.model.sampled_groups import SampledGroups
from oven_tui.screens.help import HelpScreen
from oven_tui.widgets.agent_panel import AgentPanel
from oven_tui.widgets.ballot_panel import BallotPanel
from oven_tui.widgets.base_widgets import Panel
from oven_tui.widgets.charts import Charts
from oven_tui.widgets.decision_list import DecisionList
from oven_tui.widgets.filter_box import FilterBox
from oven_tui.widgets.header import Header, RunFacts
from oven_tui.widgets.machine_panel import MachinePanel

if TYPE_CHECKING:
    from oven_core.protocol.events import Event
    from oven_runs.access.run_access import RunAccess
    from oven_tui.screens.log_console import ProcessLogs

PanelFactory: TypeAlias = Callable[[MonitorView], Panel]
PANELS: Final[tuple[PanelFactory, ...]] = (MachinePanel, AgentPanel, DecisionList, BallotPanel)
"""The panels next to the charts, in order. To add a panel, write a widget, add it here and set its height in
styles.tcss."""
WIDE_COLUMNS, TALL_ROWS = 150, 32
"""Minimum sizes in cells: the width for lists next to the charts, and the height for the machine panel and for charts
and lists that grow with the screen."""


class MonitorApp(ActingApp):
    TITLE = "Oven Controller"
    ENABLE_COMMAND_PALETTE = True
    BINDINGS: ClassVar[list[BindingType]] = bindings("monitor")
    COMMANDS: ClassVar[set[Any]] = {CommandPalette}

    def __init__(
        self,
        facts: RunFacts,
        access: RunAccess | None = None,
        *,
        control: bool = False,
        appearance: Appearance | None = None,
        panels: Sequence[PanelFactory] = PANELS,
    ) -> None:
        """`access` reads the run. It is None in tests, which call `add_events`. `control` enables the commands that act
        on the run, if the user's key permits them."""
        super().__init__(appearance)
        self.HORIZONTAL_BREAKPOINTS = [(0, "-narrow"), (WIDE_COLUMNS, "-wide")]
        self.VERTICAL_BREAKPOINTS = [(0, "-low"), (TALL_ROWS, "-tall")]
        self.view = MonitorView()
        self.shown = self.view
        """The view that the widgets draw: `view`, or a copy of it while the display is frozen."""
        self.sampled = SampledGroups()
        """Sampled completions. They are read when the user opens their page."""
        self.facts = facts
        self.wants_runs = False
        """Whether the user closed the monitor to see the list of runs."""
        self.charts = Charts(self.view)
        self._access = access
        self._console_buffer = ConsoleBuffer()
        self._logs: ProcessLogs | None = None
        self._panels: list[Panel] = []
        self._panel_factories = panels
        self._is_warmed_up = self._has_ended = False
        self._control = control

    def compose(self) -> ComposeResult:
        yield Header(self.facts, self.shown)
        with Container(id="board"):
            self.charts = Charts(self.shown)
            yield self.charts
            with Container(id="lists"):
                self._panels = [make(self.shown) for make in self._panel_factories]
                yield from self._panels
        yield FilterBox("metrics", "eval/ !std: words in a metric's name", id="metric-filter", stays=True)
        yield FilterBox("decisions", "agent:lr actuator:lr step:9-90 !rejected", id="filter")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self.query_one(DecisionList).focus()
        if self._access is not None:
            self.call_after_refresh(self._read)
        self.set_interval(1, self.update_header)

    def _read(self) -> None:
        from oven_tui.log_feed import LogFeed  # imported after the first paint, because importing the bus is slow

        assert self._access is not None
        self.run_worker(LogFeed(self._access, self.add_events, self.set_link, self.show_view).run(), exit_on_error=True)
        if self._control:
            from oven_tui.operator_session import OperatorSession

            session = OperatorSession(self._access, self.on_key_refused)
            self.enable_control(session)
            self.run_worker(session.run(), exit_on_error=True)

    def add_events(self, events: list[Event]) -> None:
        for event in events:
            self.view.feed(event)
        self.request_paint()

    def show_view(self, view: MonitorView) -> None:
        """Replace the view, for example a preview with the full log. A frozen display does not change."""
        is_frozen = self.shown is not self.view
        self.view = view
        if not is_frozen:
            self.shown = view
        self.request_paint()

    def set_link(self, link: str, detail: str) -> None:
        if (header := self.find_widget(Header)) is not None and header.link != (link, detail):
            header.link = (link, detail)
            self.request_paint()

    def silent_s(self) -> float:
        """Return the seconds since the last event was stored, or 0 if the clocks disagree."""
        last = self.view.run.last_time
        return max(0.0, (datetime.now(UTC) - last).total_seconds()) if last else 0.0

    def update_header(self) -> None:
        """Update what changes without an event: the time since the last one, and the learner's preparation."""
        if (header := self.find_widget(Header)) is not None:
            header.silent_s = self.silent_s()
            if self.view.run.started is None and isinstance(self._access, LocalRun):
                header.preparation = self._access.folder.preparation()
            header.redraw()

    def paint(self) -> None:
        header, decisions = self.find_widget(Header), self.find_widget(DecisionList)
        if header is None or decisions is None:
            return
        if (has_ended := self.view.run.ended is not None) != self._has_ended:
            self._has_ended = has_ended
            self.refresh_bindings()
        header.view, header.silent_s = self.shown, self.silent_s()
        header.events_behind = None if self.shown is self.view else self.view.run.seq - self.shown.run.seq
        header.redraw()
        self.charts.view = self.shown
        self.charts.crosshair = decisions.selected_tick
        self.charts.redraw()
        for panel in self._panels:
            panel.view = self.shown
            if isinstance(panel, BallotPanel):  # the list of decisions, which it follows, is drawn before
                panel.selected = decisions.selected()
            panel.redraw()
        if not self._is_warmed_up:
            self._is_warmed_up = True
            import oven_tui.screens.decision_detail  # noqa: F401  # so that the first Enter is fast

            gc.collect()
            gc.freeze()  # objects from start-up are permanent: exclude them from later collections

    def on_decision_list_moved(self, message: DecisionList.Moved) -> None:
        """Draw what depends on the cursor after the list, so that the cursor reacts to a key immediately."""
        self.call_after_refresh(self._follow_cursor)

    def _follow_cursor(self) -> None:
        decisions, ballot = self.find_widget(DecisionList), self.find_widget(BallotPanel)
        if decisions is None:
            return
        if ballot is not None:
            ballot.selected = decisions.selected()
            ballot.redraw()
        if decisions.selected_tick != self.charts.crosshair:
            self.charts.crosshair = decisions.selected_tick
            self.charts.redraw()

    def on_decision_list_chosen(self, message: DecisionList.Chosen) -> None:
        from oven_tui.screens.decision_detail import DecisionScreen  # imported late because the mesh is slow to import

        self.push_screen(DecisionScreen(message.entry, self.shown))

    def check_action(self, action: str, parameters: tuple[object, ...]) -> bool | None:
        """Also hide the commands whose keys are text while the user types a filter."""
        is_typing = self.focused is not None and isinstance(self.focused.parent, FilterBox)
        if is_typing and action in ("filter", "command_palette"):
            return False
        return super().check_action(action, parameters)

    def action_completions(self) -> None:
        from oven_tui.completion_feed import sampled_groups  # imported late, as in _read
        from oven_tui.screens.sampled_completions import CompletionScreen

        source = partial(sampled_groups, self._access) if self._access is not None else None
        self.push_screen(CompletionScreen(self.sampled, source))

    def action_freeze(self) -> None:
        self.shown = self.view.frozen_copy() if self.shown is self.view else self.view
        self.paint()

    def action_tail(self) -> None:
        self.shown = self.view
        self.paint()
        self.query_one(DecisionList).tail()

    def action_metrics(self, offset: int) -> None:
        self.charts.change_page(offset)
        self.charts.redraw()

    def action_zoom(self, offset: int) -> None:
        self.charts.change_zoom(offset)
        self.charts.redraw()

    def action_console(self) -> None:
        from oven_tui.screens.log_console import ConsoleScreen, ProcessLogs

        if self._logs is None and isinstance(self._access, LocalRun):
            self._logs = ProcessLogs(self._access.folder.logs)
        self.push_screen(ConsoleScreen(self._console_buffer, self._logs))

    def action_log_scale(self) -> None:
        self.charts.toggle_log_scale()
        self.charts.redraw()

    def action_filter(self) -> None:
        self.query_one("#filter", FilterBox).open()

    def action_filter_metrics(self) -> None:
        self.query_one("#metric-filter", FilterBox).open()

    def action_unfilter(self) -> None:
        for box in self.query(FilterBox):
            box.clear()

    def on_filter_box_changed(self, message: FilterBox.Changed) -> None:
        if message.box.id == "metric-filter":
            self.charts.name_filter = message.words
            self.charts.redraw()
        elif message.box.id == "filter":
            decisions = self.query_one(DecisionList)
            decisions.filter = message.words
            decisions.redraw()

    def on_filter_box_closed(self) -> None:
        self.query_one(DecisionList).focus()

    def action_save(self) -> None:
        self.save_picture("monitor", self._access)

    def action_runs(self) -> None:
        self.wants_runs = True
        self.exit()

    def action_help(self) -> None:
        self.push_screen(HelpScreen())
