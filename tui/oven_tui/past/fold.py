"""The fold of a log.jsonl, from its beginning or a cached fold: signatures checked, events fed to a view."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import NamedTuple

from oven_core.protocol.messages import Decision
from oven_core.security.signing import Keyring
from oven_runs.access.log_sources import LogFile
from oven_runs.home.run_folder import RunFolder
from oven_tui.model.monitor_view import MonitorView

LOOK_EVENTS = 512
"""Between two looks at how far it is: about 40 ms."""


@dataclass
class Fold:
    """How far a log was folded: the view, who signs from here on, and up to which byte."""

    view: MonitorView
    keyring: Keyring
    offset: int = 0

    @property
    def seq(self) -> int:
        """Of the last event in it."""
        return self.view.run.seq


class Decided(NamedTuple):
    """Where a decision stands."""

    seq: int
    tick: int


@dataclass
class Folding:
    """Folds a run's log to its end. Iterate over it: it yields after every LOOK_EVENTS events and at the end. Where it
    raises ConfigError, `begin` has what was folded before the fault."""

    folder: RunFolder
    begin: Fold | None = None
    growing: bool = False
    decided: list[Decided] = field(default_factory=list)
    """The decisions that it passed; who reads them may clear them."""
    digest: hashlib.blake2b = field(default_factory=hashlib.blake2b)
    """Of the bytes before `begin` when it begins, and of all that was folded when it ends."""

    def __iter__(self) -> Iterator[Fold]:
        self.begin = fold = self.begin or Fold(MonitorView(), Keyring(self.folder.pin()))
        log = LogFile(self.folder, offset=fold.offset, seq=fold.seq, growing=self.growing, each=self.digest.update)
        verify, feed = fold.keyring.verify, fold.view.feed
        try:
            for number, event in enumerate(map(verify, log), 1):
                feed(event)
                if isinstance(event.body, Decision):
                    self.decided.append(Decided(event.seq, fold.view.run.tick))
                if number % LOOK_EVENTS == 0:
                    fold.offset = log.offset
                    yield fold
        finally:
            fold.offset = log.offset
        yield fold


def digest_of(folder: RunFolder, length: int, look: Callable[[], object] = lambda: None) -> hashlib.blake2b:
    """BLAKE2b of the first `length` bytes of the log. Raises OSError."""
    digest = hashlib.blake2b()
    with folder.export.open("rb", buffering=0) as file:
        left = length
        while left and (piece := file.read(min(left, 1 << 22))):
            digest.update(piece)
            left -= len(piece)
            look()
    return digest
