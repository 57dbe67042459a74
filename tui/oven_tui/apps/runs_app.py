"""The application with the list of runs. It returns the selected runs, and opens again after they are closed."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime

from textual.app import ComposeResult
from textual.widgets import Footer

from oven_core.errors import OvenError, reason
from oven_runs.access.run_access import RunAccess
from oven_runs.home.run_rows import RunRows
from oven_runs.log.run_row import RunRow, add_summary
from oven_tui.appearance import Appearance
from oven_tui.model.cell_text import TextRun, duration_text, row
from oven_tui.model.monitor_view import MonitorView
from oven_tui.screens.help import HelpScreen
from oven_tui.themed_app import ThemedApp
from oven_tui.widgets.base_widgets import Lines
from oven_tui.widgets.filter_box import FilterBox
from oven_tui.widgets.run_list import RunList

POLL_S = 2.0
"""Seconds between two checks of the home folder, and between two requests for new events."""
WIDE_COLUMNS = 100  # minimum width for showing the note about signatures


class RemoteRunRow:
    """The row of a run on another machine. It continues from the view of a monitor that has shown the run."""

    def __init__(self, access: RunAccess, view: MonitorView) -> None:
        self.access, self._view = access, view
        self._fault = ""

    async def follow(self, on_update: Callable[[], None]) -> None:
        """Request new events until cancelled. Call `on_update` after each request and each error."""
        from nats.errors import Error as NatsError

        from oven_runs.access.log_sources import read_batches

        while True:
            try:
                async with self.access.connect("monitor") as bus:
                    keyring = await self.access.live_keyring(bus)
                    while True:
                        async for events in read_batches(bus, self.access.run, self._view.run.seq):
                            for event in events:
                                self._view.feed(keyring.verify(event))
                        self._fault = ""
                        on_update()
                        await asyncio.sleep(POLL_S)
            except (OvenError, NatsError, OSError) as error:
                self._fault = reason(error)
                on_update()
                await asyncio.sleep(POLL_S)

    def row(self) -> RunRow:
        run = self._view.run
        row = RunRow(
            self.access.run,
            recipe=run.started.recipe if run.started else "",
            status=run.ended.reason if run.ended else "running",
            pace_s=self._view.pace_s or None,
            fault=self._fault,
            location=self.access.location,
            is_complete=True,
        )
        return add_summary(row, run)


@dataclass(frozen=True)
class RunSelection:
    """The runs to open: one run, two to four runs for an overlay, or with `play` one run to replay."""

    runs: tuple[str, ...]
    play: bool = False
    marked: tuple[str, ...] = ()
    """The marked runs, which are restored when the list opens again."""


class SummaryLine(Lines):
    """A line about all runs or about the run under the cursor."""

    def __init__(self, *, id: str) -> None:
        super().__init__(id=id)
        self.left_part: list[TextRun] = []
        self.right_part: list[TextRun] = []

    def rows(self, width: int, height: int) -> list[list[TextRun]]:
        return [row(width, self.left_part, self.right_part)]


class RunsApp(ThemedApp[RunSelection]):
    TITLE = "Oven Controller: runs"
    ENABLE_COMMAND_PALETTE = False

    def __init__(
        self,
        rows: RunRows,
        *,
        remote_row: RemoteRunRow | None = None,
        appearance: Appearance | None = None,
        cursor: str = "",
        marked: Sequence[str] = (),
    ) -> None:
        """`remote_row` is a run on another machine, listed first. `cursor` and `marked` restore the last state."""
        super().__init__(appearance)
        self._source = rows
        self._remote_row = remote_row
        self._cursor = cursor
        self._marked = marked

    def compose(self) -> ComposeResult:
        yield SummaryLine(id="runs-summary")
        yield RunList()
        yield SummaryLine(id="run-detail")
        yield FilterBox("runs", "state:live recipe:grpo run:name !failed", id="filter")
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self._source.refresh()
        runs = self.screen_stack[0].query_one(RunList)
        runs.marked = list(self._marked)
        runs.focus()
        self.show_rows()
        runs.put_cursor(self._cursor)
        self.run_worker(self._follow(), exit_on_error=True)
        if self._remote_row is not None:
            self.run_worker(self._remote_row.follow(self.show_rows), exit_on_error=True)

    async def _follow(self) -> None:
        """Read new events from all logs while the list is open. Redraw after each batch."""
        while True:
            try:
                for _ in self._source.advance():
                    self.show_rows()
                    await asyncio.sleep(0)
                self._source.save()
                await asyncio.sleep(POLL_S)
                await asyncio.to_thread(self._source.refresh)
                self.show_rows()
            except OvenError as error:
                self.notify(str(error), severity="error")
                await asyncio.sleep(POLL_S)

    def show_rows(self) -> None:
        if not self.screen_stack:
            return
        rows = [self._remote_row.row()] if self._remote_row is not None else []
        rows += self._source.rows.values()
        now = datetime.now(UTC)
        live_count = sum(row.status == "running" for row in rows)
        alert_count = sum(len(row.alerts(now)) for row in rows if row.status == "running")
        unread_count = sum(not row.is_complete for row in rows)
        summary = self.screen_stack[0].query_one("#runs-summary", SummaryLine)
        summary.left_part = [(_format_count(len(rows), "run"), "strong"), (f"  {live_count} live", "good")]
        summary.left_part += [(f"  {_format_count(alert_count, 'alert')}", "warn")] if alert_count else []
        summary.left_part += [(f"  reading {_format_count(unread_count, 'log')} …", "dim")] if unread_count else []
        is_wide = self.size.width >= WIDE_COLUMNS
        note = "signatures are checked when a run is opened" if is_wide else "signatures are not checked here"
        summary.right_part = [(note, "dim")]
        summary.redraw()
        self.screen_stack[0].query_one(RunList).show_rows(rows)

    def on_run_list_moved(self, message: RunList.Moved) -> None:
        detail, row = self.screen_stack[0].query_one("#run-detail", SummaryLine), message.row
        detail.left_part = _describe_run(row, datetime.now(UTC)) if row is not None else []
        detail.redraw()

    def on_run_list_chosen(self, message: RunList.Chosen) -> None:
        self._source.save()
        marked = self.screen_stack[0].query_one(RunList).marked
        self.exit(RunSelection(tuple(message.runs), message.play, tuple(marked)))

    def action_filter(self) -> None:
        self.screen_stack[0].query_one(FilterBox).open()

    def action_unfilter(self) -> None:
        if not self.screen_stack[0].query_one(FilterBox).clear():
            self.screen_stack[0].query_one(RunList).marked = []
        self.show_rows()

    def on_filter_box_changed(self, message: FilterBox.Changed) -> None:
        self.screen_stack[0].query_one(RunList).filter = message.words
        self.show_rows()

    def on_filter_box_closed(self) -> None:
        self.screen_stack[0].query_one(RunList).focus()

    def action_help(self) -> None:
        self.push_screen(HelpScreen(("runs",)))


def _format_count(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"


def _describe_run(row: RunRow, now: datetime) -> list[TextRun]:
    """Return the details of the run under the cursor that no column shows."""
    silent = row.silent_s(now)
    last_event = f", last event {duration_text(silent)} ago" if silent is not None else ""
    age = row.age_s(now)
    age_text = f", {duration_text(age)} old" if age is not None else ""
    location = f" at {row.location}" if row.location else ""
    parts: list[TextRun] = [(row.run, "strong"), (f"{location}  {row.recipe}{age_text}{last_event}", "dim")]
    if row.ended:
        parts.append((f"  {row.ended}", "dim"))
    return parts + [("  " + alert, "warn") for alert in row.alerts(now)]
