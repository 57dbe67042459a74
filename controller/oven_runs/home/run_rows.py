"""The rows of a list of runs: state, step, target metric, decisions, alerts, age and pace of each run in a home.

A row is made from the digest of the run's log.jsonl, and kept in `cache/run-rows.json` with the file's size and time of
change: a list that is opened again reads only the logs that changed since.
"""

from __future__ import annotations

import io
import json
import math
import os
from collections import deque
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import UTC
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from oven_core.errors import OvenError, reason
from oven_core.files import write_atomic
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Observation
from oven_runs.home.run_folder import Home, RunFolder
from oven_runs.log.run_row import RunRow
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


CACHE: Final = "run-rows.json"
_ROW: Final = TypeAdapter(RunRow)
FORMAT: Final = 1
"""Of the cache: a file of another format is not read."""


class RunRows:
    """The rows of a home's runs. Call `look` to learn of new runs, `advance` to read their logs a piece at a time."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._cache = home.cache / CACHE
        self._kept: dict[str, dict[str, Any]] = {}
        self._digests: dict[str, LogDigest] = {}
        self._seen: dict[str, tuple[int, int]] = {}
        self._folders: dict[str, RunFolder] = {}
        self.rows: dict[str, RunRow] = {}
        """By run, the newest first."""
        self._load()

    def look(self) -> None:
        """Which runs there are and how they stand, without their logs: a file and a lock for each. Raises ConfigError
        where the home cannot be used."""
        folders = self._home.runs()
        self._folders = {folder.run: folder for folder in folders}
        self.rows = {folder.run: self._standing(folder) for folder in folders}

    def _standing(self, folder: RunFolder) -> RunRow:
        info = folder.info()
        row = self.rows.get(folder.run) or self._from_cache(folder) or RunRow(folder.run)
        return replace(
            row, recipe=info.recipe, drill=info.drill, created=info.created, status=folder.status(), run=folder.run
        )

    def advance(self) -> Iterator[RunRow]:
        """Rows as they change, after a slice of a log each: live runs first, then the newest. Ends when no log has
        anything new."""
        order = sorted(self._folders.values(), key=lambda folder: self.rows[folder.run].status != "running")
        for folder in order:
            more = self._changed(folder)
            while more:
                row, more = self._read(folder)
                if row != self.rows.get(folder.run):
                    self.rows[folder.run] = row
                    yield row

    def save(self) -> None:
        """Keep the rows for the next list. A home that cannot be written to keeps none."""
        rows = {
            run: {"at": self._seen[run], "row": asdict(row)}
            for run, row in self.rows.items()
            if row.whole and run in self._seen
        }
        if rows == self._kept:
            return
        try:
            self._cache.parent.mkdir(exist_ok=True)
            write_atomic(self._cache, json.dumps({"format": FORMAT, "runs": rows}))
            self._kept = rows
        except OSError:
            return

    def _load(self) -> None:
        try:
            kept = json.loads(self._cache.read_text())
            if kept["format"] == FORMAT:
                self._kept = dict(kept["runs"])
        except (OSError, ValueError, KeyError, TypeError, RecursionError):
            self._kept = {}

    def _from_cache(self, folder: RunFolder) -> RunRow | None:
        kept = self._kept.get(folder.run)
        try:
            if kept is None or tuple(kept["at"]) != _at(folder.export):
                return None
            row = _ROW.validate_python(kept["row"])
        except (OSError, KeyError, TypeError, ValidationError):
            return None
        self._seen[folder.run] = _at(folder.export)
        return row

    def _changed(self, folder: RunFolder) -> bool:
        try:
            at = _at(folder.export)
        except OSError:
            return not self.rows[folder.run].fault and self.rows[folder.run].status != "running"
        return at != self._seen.get(folder.run) or not self.rows[folder.run].whole

    def _read(self, folder: RunFolder) -> tuple[RunRow, bool]:
        """The row after one more slice, and whether there is more to read."""
        row = self.rows[folder.run]
        digest = self._digests.setdefault(folder.run, LogDigest(folder.export))
        try:
            at = _at(folder.export)
            more = digest.advance()
        except FileNotFoundError:
            stored = "in its store: open the run to read it" if folder.stored() else "it ended before it had one"
            return replace(row, fault=f"no log.jsonl yet; {stored}", whole=True), False
        except (OSError, OvenError) as error:
            return replace(row, fault=reason(error), whole=True), False
        self._seen[folder.run] = at
        if not more and row.status != "running":
            del self._digests[folder.run]  # the row is all that is needed of it
        return _row(row, digest), more


def _row(row: RunRow, digest: LogDigest) -> RunRow:
    summary, seen = digest.summary, digest.observation
    metrics = {**summary.metrics, **(seen.metrics if seen is not None and not digest.complete else {})}
    target = summary.target() or ""
    horizon = summary.started.horizon.max_steps if summary.started else None
    ended = summary.ended
    last = max([event.time for event in digest.newest[-1:]] + [t for t in (summary.last_time,) if t], default=None)
    done = sum(summary.receipts.get(status, 0) for status in ("applied", "noop"))
    early = not digest.complete and seen is not None
    return replace(
        row,
        step=seen.step if early and seen is not None else summary.step if summary.started else None,
        max_steps=horizon,
        progress=seen.progress if early and seen is not None else summary.progress,
        target=target,
        first=_finite(digest.first.get(target)),
        now=_finite(metrics.get(target)),
        adopted=summary.adopted if digest.complete else None,
        rejected=summary.rejected if digest.complete else None,
        advised=tuple(d.id for d in summary.advised.values() if not summary.lapsed(d)) if digest.complete else (),
        held=summary.held,
        ended=(f"{ended.reason}: {ended.detail}" if ended.detail else ended.reason) if ended else "",
        malformed=summary.malformed + digest.unread,
        not_applied=sum(summary.receipts.values()) - done if digest.complete else 0,
        pace_s=_finite(digest.pace_s),
        last=last.astimezone(UTC).isoformat() if last else "",
        fault="" if summary.started or not digest.complete or row.status == "running" else "it holds no start of a run",
        whole=digest.complete,
    )


def _finite(value: float | None) -> float | None:
    return value if value is not None and math.isfinite(value) else None


def _at(path: Path) -> tuple[int, int]:
    about = path.stat()
    return about.st_size, about.st_mtime_ns
