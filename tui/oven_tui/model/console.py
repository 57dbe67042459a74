"""The lines of a run's process logs for the console: cleaned, bounded in number, filtered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from oven_core.terminal_text import clean
from oven_tui.model.word_filter import word_filter

LINES = 10_000
"""Lines in memory for all processes together; the oldest are dropped."""
LONGEST = 2000
"""Characters of a line in memory."""
ALL = ""
"""The choice of all processes."""
LEVELS = {"ERROR": "bad", "CRITICAL": "bad", "WARNING": "warn", "[ERR]": "bad", "[WRN]": "warn", "Traceback": "bad"}
"""A word near the start of a line → kind of text."""
HEAD = 60


@dataclass(frozen=True, slots=True)
class Line:
    process: str
    text: str
    kind: str


class Console:
    """Add what the processes wrote, and read the lines that pass the filter."""

    def __init__(self) -> None:
        self.processes: list[str] = []
        """Processes in the order of their first lines."""
        self.process = ALL
        """The process whose lines are shown."""
        self.filter = ""
        self.forgotten = 0
        """Lines that were dropped."""
        self._lines: deque[Line] = deque(maxlen=LINES)
        self._shown: list[Line] = []
        self._shown_of: tuple[str, str, int] | None = None
        self._read = 0

    def feed(self, process: str, lines: Iterable[str]) -> None:
        """Add a process's output. Of a line that overwrites itself, such as a progress bar, the last state counts."""
        if process not in self.processes:
            self.processes.append(process)
        for raw in lines:
            text = clean(raw.rstrip("\r\n").rpartition("\r")[2][:LONGEST]).rstrip()
            if text:
                self.forgotten += len(self._lines) == LINES
                self._lines.append(Line(process, text, _kind(text)))
                self._read += 1

    def lines(self) -> list[Line]:
        """The lines of the chosen process that pass the filter, the newest last."""
        key = (self.process, self.filter, self._read)
        if key != self._shown_of:
            wanted: Callable[[Line], bool] = word_filter(self.filter, lambda line: line.text)
            chosen_lines = (line for line in self._lines if self.process in (ALL, line.process))
            self._shown, self._shown_of = [line for line in chosen_lines if wanted(line)], key
        return self._shown

    def turn(self, by: int) -> None:
        choices = [ALL, *self.processes]
        here = choices.index(self.process) if self.process in choices else 0
        self.process = choices[(here + by) % len(choices)]


def _kind(text: str) -> str:
    head = text[:HEAD]
    return next((kind for sign, kind in LEVELS.items() if sign in head), "text")
