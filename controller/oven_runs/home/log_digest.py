"""A digest of a log.jsonl: what a list of runs says of one, from its rare lines and its newest observations.

Votes, closed steps, agents' statuses and most observations are passed over by their type, so a megabyte costs about a
millisecond, and a list of hundreds of runs folds no log. Signatures are not checked: opening the run does that.
"""

from __future__ import annotations

import io
import math
import os
from collections import deque
from itertools import pairwise
from pathlib import Path
from statistics import median

from oven_core.protocol.events import Event
from oven_core.protocol.messages import Observation
from oven_runs.log.run_summary import RunSummary

SLICE_BYTES = 8 << 20
"""Read per call: 10 to 20 ms, so a reader of several logs in turn answers keys between two slices."""
TAIL_BYTES = 256 << 10
"""Read first of a log that is longer than a slice: hundreds of observations with their votes."""
NEWEST = 20
"""Observations whose times make the pace."""
_TYPE = b'"type": "'
_HEAD = 600
"""A line's type stands within so many bytes: what comes before it has at most 256 each for identity and signature."""
_PASSED_OVER = (b"Vote", b"Step", b"Agen")
_OBSERVATION = b"Obse"


class LogDigest:
    """The digest of one log; each call of `advance` takes it further."""

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity: tuple[int, int] | None = None
        self._begin()

    def _begin(self) -> None:
        self.summary = RunSummary()
        """Of the lines that were not passed over. Its counts of votes and observations mean nothing."""
        self.first: dict[str, float] = {}
        """First values of the first observation's metrics, and of the held-out one."""
        self.complete = False
        """Whether all of the file was looked at; until then the counts are of a part of it."""
        self.unread = 0
        """Lines that could not be read."""
        self.newest: list[Event] = []
        """The newest observations."""
        self._offset = 0
        self._lines: deque[bytes] = deque(maxlen=NEWEST)
        self._waiting = b""  # the newest observation, if it was not fed
        self._evaluated = b""  # the newest one with the held-out metric, if it was not fed
        self._held_out_name, self._held_out = "", b""  # that metric, and as it stands in a line

    def advance(self) -> bool:
        """Take up to SLICE_BYTES more. Returns whether more is left. Raises OSError where there is no file."""
        with self._path.open("rb", buffering=0) as file:
            about = os.fstat(file.fileno())
            if (about.st_dev, about.st_ino) != self._identity or about.st_size < self._offset:
                self._begin()
                self._identity = about.st_dev, about.st_ino
            if not self._offset and about.st_size > SLICE_BYTES:
                self._look_ahead(file, about.st_size)
            file.seek(self._offset)
            data = file.read(SLICE_BYTES)
        whole = data.rfind(b"\n") + 1
        if not whole and len(data) == SLICE_BYTES:
            whole = len(data)  # no line of ours is so long
        for line in data[:whole].splitlines():
            self._take(line)
        self._offset += whole
        self.complete = self._offset >= about.st_size or len(data) < SLICE_BYTES
        if self.complete and whole:
            self._feed_waiting()
            self.newest = [event for event in map(_event, self._lines) if event is not None]
        return not self.complete

    def _look_ahead(self, file: io.FileIO, size: int) -> None:
        """The newest observations of a long log, before what stands between is read."""
        file.seek(size - TAIL_BYTES)
        ahead = [line for line in file.read(TAIL_BYTES).splitlines()[1:] if _kind(line) == _OBSERVATION]
        self.newest = [event for event in map(_event, ahead[-NEWEST:]) if event is not None]

    def _take(self, line: bytes) -> None:
        kind = _kind(line)
        if kind in _PASSED_OVER:
            return
        if kind == _OBSERVATION:
            self._lines.append(line)
            self._waiting = line
            if self._held_out and self._held_out in line:
                self._evaluated = line
                if self._held_out_name not in self.first:
                    self._feed_waiting()
            elif not self.first:
                self._feed_waiting()
            return
        self._feed_waiting()
        self._feed(line)

    def _feed_waiting(self) -> None:
        evaluated, line, self._evaluated, self._waiting = self._evaluated, self._waiting, b"", b""
        if evaluated and evaluated is not line:
            self._feed(evaluated)
        if line:
            self._feed(line)

    def _feed(self, line: bytes) -> None:
        event = _event(line)
        if event is None:
            self.unread += 1
            return
        self.summary.feed(event)
        for name, value in self.summary.metrics.items():
            self.first.setdefault(name, value)
        self._held_out_name = next(iter(self.summary.held_out()), "")
        self._held_out = f'"{self._held_out_name}":'.encode() if self._held_out_name else b""

    @property
    def observation(self) -> Observation | None:
        """The newest one."""
        return next((e.body for e in reversed(self.newest) if isinstance(e.body, Observation)), None)

    @property
    def pace_s(self) -> float:
        """Median of the seconds between the newest observations; NaN where there are not two."""
        times = [event.time for event in self.newest]
        gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(times)]
        return median(gaps) if gaps else math.nan


def _kind(line: bytes) -> bytes:
    """The first four letters of its type; empty for what is not a line of a log."""
    at = line.find(_TYPE, 0, _HEAD)
    return line[at + len(_TYPE) : at + len(_TYPE) + 4] if at >= 0 else b""


def _event(line: bytes) -> Event | None:
    try:
        return Event.from_line(line.decode())
    except (ValueError, KeyError, TypeError):
        return None
