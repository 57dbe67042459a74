"""The console page, which shows the process logs of a run as they are written."""

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

from oven_tui.key_bindings import bindings
from oven_tui.model.braille_chart import TextRun
from oven_tui.model.cell_text import fit, glyph, row
from oven_tui.model.console_buffer import ALL, ConsoleBuffer
from oven_tui.screens.help import HelpScreen
from oven_tui.widgets.base_widgets import PAINT_CLASSES, PaintMixin
from oven_tui.widgets.filter_box import FilterBox

POLL_S = 0.5  # seconds between reads of the log files while the console is open
TAIL_BYTES: Final = 128 * 1024
"""Bytes at the end of a file to read first, because a log may be gigabytes long."""
MAX_READ_BYTES: Final = 256 * 1024
"""Maximum bytes of a file to read at a time. If a process writes more, the older part is skipped."""
MAX_LINE_BYTES: Final = 8192
"""Maximum length of a line in bytes. Longer lines are split."""
PROCESS_CELLS = 16  # width of the process names
SIDEWAYS_CELLS = 20  # cells by which a key scrolls long lines sideways


class ProcessLogs:
    """The tails of a run's process logs. Call `read` regularly, in a thread because it reads files."""

    def __init__(self, folder: Path) -> None:
        self._folder = folder
        self._files: dict[str, _Tail] = {}

    def read(self) -> list[tuple[str, list[str]]]:
        """Return the new lines of each process, sorted by process. Unreadable files are skipped."""
        output = []
        with contextlib.suppress(OSError):
            for path in sorted(self._folder.glob("*.log")):
                tail = self._files.setdefault(path.stem, _Tail(path))
                with contextlib.suppress(OSError):
                    if lines := list(tail.read()):
                        output.append((path.stem, lines))
        return output


class _Tail:
    """The tail of one file. If the file becomes shorter, it is read again from its start."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._offset: int | None = None
        self._incomplete_line = b""

    def read(self) -> Iterator[str]:
        with self._path.open("rb") as file:
            size = file.seek(0, 2)
            if self._offset is None or size < self._offset:
                self._offset, self._incomplete_line = max(0, size - TAIL_BYTES), b""
                is_truncated = self._offset > 0
            else:
                is_truncated = size - self._offset > MAX_READ_BYTES
                self._offset = size - MAX_READ_BYTES if is_truncated else self._offset
            file.seek(self._offset)
            new_bytes = file.read(size - self._offset)
            self._offset += len(new_bytes)
        *lines, self._incomplete_line = (self._incomplete_line + new_bytes).split(b"\n")
        if is_truncated and lines:
            del lines[0]  # the beginning of the first line is missing
        if len(self._incomplete_line) > MAX_LINE_BYTES:
            lines.append(self._incomplete_line)
            self._incomplete_line = b""
        for line in lines:
            yield line.decode(errors="replace")


class ConsoleLines(PaintMixin, ScrollView, can_focus=True):
    """The list of lines, the newest last. It follows the newest line until the user scrolls up."""

    COMPONENT_CLASSES: ClassVar[set[str]] = PAINT_CLASSES
    BINDINGS: ClassVar[list[BindingType]] = bindings("console")

    def __init__(self, buffer: ConsoleBuffer) -> None:
        super().__init__(id="console-lines")
        self._buffer = buffer
        self._text_offset = 0
        self._follows_newest = True
        self._dropped_count = 0

    def redraw(self) -> None:
        lines = self._buffer.lines()
        self.virtual_size = Size(self.size.width, len(lines))
        if self._follows_newest:
            self.scroll_to(y=len(lines), animate=False, force=True)
        elif new_dropped_count := self._buffer.dropped_count - self._dropped_count:  # the remaining lines moved up
            self.scroll_to(y=max(0, self.scroll_offset.y - new_dropped_count), animate=False, force=True)
        self._dropped_count = self._buffer.dropped_count
        self.refresh()

    def on_resize(self) -> None:
        self.redraw()

    def on_mouse_scroll_up(self) -> None:
        self._follows_newest = False

    def action_move(self, offset: int) -> None:
        self._move(self.scroll_offset.y + offset)

    def action_page(self, offset: int) -> None:
        self._move(self.scroll_offset.y + offset * max(1, self.size.height - 1))

    def action_first(self) -> None:
        self._move(0)

    def action_last(self) -> None:
        self._follows_newest = True
        self.redraw()

    def action_sideways(self, offset: int) -> None:
        self._text_offset = max(0, self._text_offset + offset * SIDEWAYS_CELLS)
        self.refresh()

    def _move(self, y: int) -> None:
        last = max(0, self.virtual_size.height - self.size.height)
        self._follows_newest = y >= last
        self.scroll_to(y=max(0, min(y, last)), animate=False, force=True)

    def render_line(self, y: int) -> Strip:
        lines, number = self._buffer.lines(), y + self.scroll_offset.y
        width = self.scrollable_content_region.width
        if number >= len(lines):
            hint = "no line matches; press escape to show all" if self._buffer.filter else "no output yet"
            return self.strip(row(width, [(hint, "dim")] if not lines and number == 0 else []))
        line = lines[number]
        runs: list[TextRun] = []
        if self._buffer.process == ALL:
            index = self._buffer.processes.index(line.process)
            symbol, colour = glyph(index)
            runs = [(f"{symbol} ", colour), (fit(line.process, PROCESS_CELLS) + " ", "dim")]
        return self.strip(row(width, [*runs, (line.text[self._text_offset :], line.kind)]))


class ConsoleScreen(ModalScreen[None]):
    BINDINGS: ClassVar[list[BindingType]] = bindings("console_page")

    def __init__(self, buffer: ConsoleBuffer, logs: ProcessLogs | None) -> None:
        """Both arguments outlive the page, so that lines and filter are still there when it opens again. `logs` is None
        if the process logs are on another machine."""
        super().__init__(id="console")
        self._buffer = buffer
        self._logs = logs
        self._lines = ConsoleLines(buffer)

    def compose(self) -> ComposeResult:
        yield Static(id="console-title", markup=False)
        if self._logs is None:
            yield Static("The process logs are on the run's machine, in its folder under logs/.")
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
                self._buffer.feed(process, lines)
            if output:
                self._redraw()
            await asyncio.sleep(POLL_S)

    def _redraw(self) -> None:
        buffer, line_count = self._buffer, len(self._buffer.lines())
        process = "all processes" if buffer.process == ALL else buffer.process
        matches = f" match {buffer.filter!r}" if buffer.filter else ""
        drop_note = f", {buffer.dropped_count} older lines were dropped" if buffer.dropped_count else ""
        self.query_one("#console-title", Static).update(f" {process}: {line_count} lines{matches}{drop_note}")
        self._lines.redraw()

    def action_process(self, offset: int) -> None:
        self._buffer.next_process(offset)
        self._redraw()

    def action_filter(self) -> None:
        self.query_one(FilterBox).open()

    def action_help(self) -> None:
        self.app.push_screen(HelpScreen(("console_page", "console")))

    def action_back(self) -> None:
        if not self.query_one(FilterBox).clear():
            self.dismiss()

    def on_filter_box_changed(self, message: FilterBox.Changed) -> None:
        self._buffer.filter = message.words
        self._redraw()

    def on_filter_box_closed(self) -> None:
        self._lines.focus()
