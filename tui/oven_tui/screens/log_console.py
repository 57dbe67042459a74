"""The console: the output of a run's processes as it is written to their logs."""

from __future__ import annotations

import asyncio
from typing import ClassVar

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.screen import ModalScreen
from textual.widgets import Footer, Static

from oven_tui.bindings import bindings
from oven_tui.model.console import ALL, Console
from oven_tui.process_logs import ProcessLogs
from oven_tui.screens.help import HelpScreen
from oven_tui.widgets.console_lines import ConsoleLines
from oven_tui.widgets.filter_box import FilterBox

LOOK_S = 0.5
"""Seconds between two reads of the files while the console is open."""


class ConsoleScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = bindings("console_page")

    def __init__(self, console: Console, logs: ProcessLogs | None) -> None:
        """Both arguments outlive the page, so that lines and filter are there when it is opened again. `logs` is None
        if they are on another machine."""
        super().__init__(id="console")
        self._written = console
        self._logs = logs
        self._lines = ConsoleLines(console)

    def compose(self) -> ComposeResult:
        yield Static(id="console-title", markup=False)
        if self._logs is None:
            yield Static("The process logs are on the machine that runs it, in the run's folder under logs/.")
        yield self._lines
        yield FilterBox("lines", "ERROR !httpx: words in a line", id="line-filter", stays=True)
        yield Footer(show_command_palette=False)

    def on_mount(self) -> None:
        self._lines.focus()
        self._redraw()
        if self._logs is not None:
            self.run_worker(self._follow(self._logs), exit_on_error=False)

    async def _follow(self, logs: ProcessLogs) -> None:
        while True:
            output = await asyncio.to_thread(logs.read)
            for process, lines in output:
                self._written.feed(process, lines)
            if output:
                self._redraw()
            await asyncio.sleep(LOOK_S)

    def _redraw(self) -> None:
        console, shown = self._written, len(self._written.lines())
        names = "all processes" if console.process == ALL else console.process
        words = f"{shown} lines" + (f" match {console.filter!r}" if console.filter else "")
        gone = f", {console.forgotten} older ones were let go" if console.forgotten else ""
        self.query_one("#console-title", Static).update(f" {names}: {words}{gone}")
        self._lines.redraw()

    def action_process(self, by: int) -> None:
        self._written.turn(by)
        self._redraw()

    def action_filter(self) -> None:
        self.query_one(FilterBox).open()

    def action_help(self) -> None:
        self.app.push_screen(HelpScreen(("console_page", "console")))

    def action_back(self) -> None:
        """Close an open filter first."""
        if not self.query_one(FilterBox).clear():
            self.dismiss()

    def on_filter_box_changed(self, message: FilterBox.Changed) -> None:
        self._written.filter = message.words
        self._redraw()

    def on_filter_box_closed(self) -> None:
        self._lines.focus()
