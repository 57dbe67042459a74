"""Lines of a run's process logs as a console shows them: cleaned, bounded in number, filtered."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Iterable
from dataclasses import dataclass

from oven_core.terminal_text import clean
from oven_tui.model.decisions import pattern

LINES = 10_000
"""Lines kept, all processes together; the oldest are let go."""
LONGEST = 2000
"""Characters of a line that are kept."""
ALL = ""
"""No process in particular."""
LEVELS = {"ERROR": "bad", "CRITICAL": "bad", "WARNING": "warn", "[ERR]": "bad", "[WRN]": "warn", "Traceback": "bad"}
"""What a line has near its beginning → kind of text."""
HEAD = 60


@dataclass(frozen=True, slots=True)
class Line:
    process: str
    text: str
    kind: str


class Console:
    """Feed it what the processes wrote; read the lines that the filter leaves."""

    def __init__(self) -> None:
        self.processes: list[str] = []
        """In the order in which they first wrote."""
        self.process = ALL
        """The one whose lines are shown."""
        self.filter = ""
        """Words that must all be found in a line, as regular expressions; `!` before one turns it round."""
        self.forgotten = 0
        """Lines that were let go."""
        self._lines: deque[Line] = deque(maxlen=LINES)
        self._shown: list[Line] = []
        self._shown_of: tuple[str, str, int] | None = None
        self._read = 0

    def feed(self, process: str, lines: Iterable[str]) -> None:
        """What a process wrote. Of a line that overwrites itself, such as a progress bar, the last state is kept."""
        if process not in self.processes:
            self.processes.append(process)
        for raw in lines:
            text = clean(raw.rstrip("\r\n").rpartition("\r")[2][:LONGEST]).rstrip()
            if text:
                self.forgotten += len(self._lines) == LINES
                self._lines.append(Line(process, text, _kind(text)))
                self._read += 1

    def lines(self) -> list[Line]:
        """Those of the chosen process that the filter leaves, the newest last."""
        asked = (self.process, self.filter, self._read)
        if asked != self._shown_of:
            wanted = matching(self.filter)
            of = (line for line in self._lines if self.process in (ALL, line.process))
            self._shown, self._shown_of = [line for line in of if wanted(line)], asked
        return self._shown

    def turn(self, by: int) -> None:
        """To the next process, or to all of them."""
        choices = [ALL, *self.processes]
        here = choices.index(self.process) if self.process in choices else 0
        self.process = choices[(here + by) % len(choices)]


def matching(words: str) -> Callable[[Line], bool]:
    """All words must hold."""
    tests = [(pattern(word.removeprefix("!")), word.startswith("!")) for word in words.split()]
    return lambda line: all(bool(sought.search(line.text)) != inverse for sought, inverse in tests)


def _kind(text: str) -> str:
    head = text[:HEAD]
    return next((kind for sign, kind in LEVELS.items() if sign in head), "text")
