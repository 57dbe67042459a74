"""The fold of a log.jsonl from its beginning: events are verified and fed to a view."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from oven_core.protocol.messages import Decision
from oven_core.security.signing import Keyring
from oven_runs.access.log_sources import LogFile
from oven_runs.home.run_folder import RunFolder
from oven_tui.model.monitor_view import MonitorView

CHUNK_EVENTS = 512
"""Events between two reports of progress, about 40 ms."""


@dataclass
class Fold:
    """A view of the first part of a log, the keys to verify the rest with, and the part's length in bytes."""

    view: MonitorView
    keyring: Keyring
    offset: int = 0

    @property
    def seq(self) -> int:
        """The sequence of its last event."""
        return self.view.run.seq


class DecisionPosition(NamedTuple):
    """A decision's place in the log."""

    seq: int
    tick: int


@dataclass
class Folding:
    """Folds a run's log to its end. Iterating yields the fold after every CHUNK_EVENTS events and at the end.

    If it raises ConfigError, `fold` holds the part before the fault.
    """

    folder: RunFolder
    growing: bool = False
    decisions: list[DecisionPosition] = field(default_factory=list)
    """The decisions so far. The reader may clear the list."""
    fold: Fold | None = None

    def __iter__(self) -> Iterator[Fold]:
        self.fold = fold = Fold(MonitorView(), Keyring(self.folder.pin()))
        log = LogFile(self.folder, growing=self.growing)
        verify, feed = fold.keyring.verify, fold.view.feed
        try:
            for number, event in enumerate(map(verify, log), 1):
                feed(event)
                if isinstance(event.body, Decision):
                    self.decisions.append(DecisionPosition(event.seq, fold.view.run.tick))
                if number % CHUNK_EVENTS == 0:
                    fold.offset = log.offset
                    yield fold
        finally:
            fold.offset = log.offset
        yield fold
