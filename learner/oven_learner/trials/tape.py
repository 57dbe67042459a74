"""A recording of what a loop reads: read again from an earlier place, it gives the same once more."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, TypeVar

from oven_learner.trials import random_state
from oven_learner.trials.copies import copied
from oven_learner.trials.random_state import Advance

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Read:
    value: Any
    advance: Advance


class Tape:
    """One loop's. What was read is kept while a trial is on, from the place where it began, and then until it has been
    given again. Training may write into what it is given: that is a copy."""

    def __init__(self) -> None:
        self.position = 0
        """How many reads the loop has behind it."""
        self._ahead: deque[_Read] = deque()
        """What is recorded, from `_first` on."""
        self._first = 0
        self.recording = False

    def __len__(self) -> int:
        """How many reads are kept."""
        return len(self._ahead)

    @property
    def at_end(self) -> bool:
        """Whether the next read comes from the source."""
        return self.position == self._first + len(self._ahead)

    def record(self) -> None:
        """From here on."""
        self.recording = True

    def read(self, source: Callable[[], T]) -> T:
        """The next of what is recorded, else the source's, with the same effect on the random generators. What the
        source raises is not recorded, and the place stays."""
        if not self.at_end:
            read = self._ahead[self.position - self._first]
            self.position += 1
            read.advance.repeat()
            if not self.recording:
                self._drop()
            given: T = copied(read.value)
            return given
        if not self.recording:
            value = source()
            self.position += 1
            self._first = self.position
            return value
        before = random_state.take()
        value = source()
        self._ahead.append(_Read(copied(value), Advance(before, random_state.take())))
        self.position += 1
        return value

    def go_to(self, position: int) -> None:
        """Raises LookupError for a place before the recording."""
        if not self._first <= position <= self._first + len(self._ahead):
            raise LookupError(
                f"read {position} is not recorded ({self._first} to {self._first + len(self._ahead)} are): the trial "
                "that this state is of is over; restore a state before finish()"
            )
        self.position = position

    def finish(self) -> None:
        """What lies behind is let go; what lies ahead is still given."""
        self.recording = False
        self._drop()

    def _drop(self) -> None:
        while self._first < self.position:
            self._ahead.popleft()
            self._first += 1
