"""Stores the newest lines of a run's process logs for the console, and filters them."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from oven_core.terminal_text import clean
from oven_tui.model.word_filter import word_filter

MAX_LINES = 10_000
"""Maximum number of lines in memory for all processes together. The oldest are dropped."""
MAX_CHARACTERS = 2000
"""Maximum length of a line in memory, in characters."""
ALL = ""
"""The value of `ConsoleBuffer.process` that selects the lines of all processes."""
LEVELS = {"ERROR": "bad", "CRITICAL": "bad", "WARNING": "warn", "[ERR]": "bad", "[WRN]": "warn", "Traceback": "bad"}
"""Word near the start of a line → the line's kind of text."""
LEVEL_CHARACTERS = 60
"""Number of characters at the start of a line in which to look for these words."""


@dataclass(frozen=True, slots=True)
class ConsoleLine:
    process: str
    text: str
    kind: str


class ConsoleBuffer:
    """The newest lines of all processes, and the filter that selects the shown lines."""

    def __init__(self) -> None:
        self.processes: list[str] = []
        """Names of the processes, in the order of their first lines."""
        self.process = ALL
        """The process whose lines are shown."""
        self.filter = ""
        self.dropped_count = 0
        """Number of lines that were dropped to limit the memory."""
        self._lines: deque[ConsoleLine] = deque(maxlen=MAX_LINES)
        self._cached_lines: list[ConsoleLine] = []
        self._cache_key: tuple[str, str, int] | None = None
        self._line_count = 0

    def feed(self, process: str, lines: Iterable[str]) -> None:
        """Add output of a process. If a line was overwritten, like a progress bar, only its last state is added."""
        if process not in self.processes:
            self.processes.append(process)
        for line in lines:
            _, _, last_state = line.rstrip("\r\n").rpartition("\r")
            text = clean(last_state[:MAX_CHARACTERS]).rstrip()
            if text:
                self.dropped_count += int(len(self._lines) == MAX_LINES)
                self._lines.append(ConsoleLine(process, text, _find_kind(text)))
                self._line_count += 1

    def lines(self) -> list[ConsoleLine]:
        """Return the lines of the selected process that pass the filter, the newest last."""
        key = (self.process, self.filter, self._line_count)
        if key != self._cache_key:
            matches: Callable[[ConsoleLine], bool] = word_filter(self.filter, lambda line: line.text)
            process_lines = (line for line in self._lines if self.process in (ALL, line.process))
            self._cached_lines, self._cache_key = [line for line in process_lines if matches(line)], key
        return self._cached_lines

    def next_process(self, offset: int) -> None:
        """Select the process that is `offset` positions further, or all processes."""
        choices = [ALL, *self.processes]
        index = choices.index(self.process) if self.process in choices else 0
        self.process = choices[(index + offset) % len(choices)]


def _find_kind(text: str) -> str:
    start = text[:LEVEL_CHARACTERS]
    return next((kind for word, kind in LEVELS.items() if word in start), "text")
