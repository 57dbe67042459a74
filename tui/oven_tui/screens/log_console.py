"""The console: the output of a run's processes as it is written to their logs."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import ClassVar, Final

from textual.app import ComposeResult
from textual.binding import BindingType
from textual.geometry import Size
from textual.screen import ModalScreen
from textual.scroll_view import ScrollView
from textual.strip import Strip
from textual.widgets import Footer, Static

from oven_tui.bindings import bindings
from oven_tui.model.braille_chart import Run
from oven_tui.model.cell_text import fit, glyph, row
from oven_tui.model.console import ALL, Console
from oven_tui.screens.help import HelpScreen
from oven_tui.widgets.base import PAINTS, Painted
from oven_tui.widgets.filter_box import FilterBox

LOOK_S = 0.5
"""Seconds between two reads of the files while the console is open."""
TAIL: Final = 128 * 1024
"""Bytes of a file to read at first, because a log may have gigabytes."""
AT_ONCE: Final = 256 * 1024
"""Bytes of a file to read at a time. Output of a faster process is skipped."""
LONGEST: Final = 8192
"""Bytes without an end of line after which they count as a line."""
PROCESS = 16
"""Cells of a process's name."""
ASIDE = 20
"""Cells by which a key moves the text sideways."""


class ProcessLogs:
    """The tails of a run's process logs. Call `read` from time to time, outside of painting, because it reads files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, _Tail] = {}

    def read(self) -> list[tuple[str, list[str]]]:
        """Return (process, new lines) by name; nothing without a folder of logs, or if none can be read."""
        output = []
        with contextlib.suppress(OSError):
            for path in sorted(self._folder.glob("*.log")):
                tail = self._files.setdefault(path.stem, _Tail(path))
                with contextlib.suppress(OSError):
                    if lines := list(tail.read()):
                        output.append((path.stem, lines))
        return output


class _Tail:
    """One file. A file that became shorter is read from the start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset: int | None = None
        self._rest = b""

    def read(self) -> Iterator[str]:
        with self._path.open("rb") as file:
            size = file.seek(0, 2)
            if self._offset is None or size < self._offset:
                self._offset, self._rest = max(0, size - TAIL), b""
                cut = self._offset > 0
            else:
                cut = size - self._offset > AT_ONCE
                self._offset = size - AT_ONCE if cut else self._offset
            file.seek(self._offset)
            piece = file.read(size - self._offset)
            self._offset += len(piece)
        *lines, self._rest = (self._rest + piece).split(b"\n")
        if cut and lines:
            del lines[0]  # its beginning is missing
        if len(self._rest) > LONGEST:
            lines.append(self._rest)
            self._rest = b""
        for line in lines:
            yield line.decode(errors="replace")


class ConsoleLines(Painted, ScrollView, can_focus=True):
    """A list that draws only visible rows, the newest last. It follows the newest until the user moves up."""

    COMPONENT_CLASSES: ClassVar[set[str]] = PAINTS
    BINDINGS: ClassVar[list[BindingType]] = bindings("console")

    def __init__(self, console: Console) -> None:
        super().__init__(id="console-lines")
        self._written = console
        self._aside = 0
        self._follows = True
        self._forgotten = 0

    def redraw(self) -> None:
        lines = self._written.lines()
        self.virtual_size = Size(self.size.width, len(lines))
        if self._follows:
            self.scroll_to(y=len(lines), animate=False, force=True)
        elif gone := self._written.forgotten - self._forgotten:  # the lines moved up
            self.scroll_to(y=max(0, self.scroll_offset.y - gone), animate=False, force=True)
        self._forgotten = self._written.forgotten
        self.refresh()

    def on_resize(self) -> None:
        self.redraw()

    def on_mouse_scroll_up(self) -> None:
        self._follows = False

    def action_lines(self, by: int) -> None:
        self._move(self.scroll_offset.y + by)

    def action_page(self, by: int) -> None:
        self._move(self.scroll_offset.y + by * max(1, self.size.height - 1))

    def action_first(self) -> None:
        self._move(0)

    def action_last(self) -> None:
        self._follows = True
        self.redraw()

    def action_aside(self, by: int) -> None:
        self._aside = max(0, self._aside + by * ASIDE)
        self.refresh()

    def _move(self, y: int) -> None:
        last = max(0, self.virtual_size.height - self.size.height)
        self._follows = y >= last
        self.scroll_to(y=max(0, min(y, last)), animate=False, force=True)

    def render_line(self, y: int) -> Strip:
        lines, number = self._written.lines(), y + self.scroll_offset.y
        width = self.scrollable_content_region.width
        if number >= len(lines):
            hint = "no line matches; escape shows all" if self._written.filter else "nothing was written yet"
            return self.strip(row(width, [(hint, "dim")] if not lines and number == 0 else []))
        line = lines[number]
        runs: list[Run] = []
        if self._written.process == ALL:
            index = self._written.processes.index(line.process)
            sign, colour = glyph(index)
            runs = [(f"{sign} ", colour), (fit(line.process, PROCESS) + " ", "dim")]
        return self.strip(row(width, [*runs, (line.text[self._aside :], line.kind)]))


class ConsoleScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = bindings("console_page")

    def __init__(self, console: Console, logs: ProcessLogs | None) -> None:
        """Both arguments outlive the page, so that lines and filter remain when it is opened again. `logs` is None if
        they are on another machine."""
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
        if not self.query_one(FilterBox).clear():
            self.dismiss()

    def on_filter_box_changed(self, message: FilterBox.Changed) -> None:
        self._written.filter = message.words
        self._redraw()

    def on_filter_box_closed(self) -> None:
        self._lines.focus()
