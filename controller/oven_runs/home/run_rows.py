"""Build the list of runs in a home, with one row per run, and cache it on disk.

A row is computed from a digest of the run's log.jsonl. It is cached in `cache/run-rows.json` with the size and
modification time of log.jsonl, so that reopening the list reads only the logs that changed. Signatures are not checked
until a run is opened.
"""

from __future__ import annotations

import contextlib
import math
import os
import re
from collections import deque
from collections.abc import Iterator
from dataclasses import replace
from datetime import datetime
from itertools import pairwise
from pathlib import Path
from statistics import median
from typing import Final, Literal

from pydantic import BaseModel, ValidationError

from oven_core.errors import OvenError, reason
from oven_core.files import write_atomic
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Observation
from oven_runs.home.run_folder import Home, RunFolder
from oven_runs.log.run_row import RunRow, add_summary, finite_or_none
from oven_runs.log.run_summary import RunSummary

SLICE_BYTES: Final = 1 << 20
"""Maximum bytes read per call. A call takes about 20 ms, so that a monitor can react to keys in between."""
PACE_OBSERVATIONS: Final = 20
"""Number of newest observations from which the pace is computed."""
CACHE: Final = "run-rows.json"
NO_START_FAULT: Final = "its log does not contain the start of a run"
_SKIPPED_TYPE: Final = re.compile(rb'"type": "(Vote|StepClosed|AgentStatus)"')
_HEAD_BYTES: Final = 600
"""Bytes at the start of a line that contain its type. The id and signature before it have at most 256 bytes each."""


class LogDigest:
    """The data for one run's row, read from its log in slices by `advance`.

    Votes, closed steps and agents' statuses are most of the lines and are skipped without decoding.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._identity: tuple[int, int] | None = None  # the file's device and inode
        self._reset()

    def _reset(self) -> None:
        self.summary = RunSummary()
        """Summary of the lines that were not skipped."""
        self.is_complete = False
        """Whether the whole file was read. Before that, counts cover only part of it."""
        self.unreadable_lines = 0
        """Number of lines that are not events."""
        self.times: deque[datetime] = deque(maxlen=PACE_OBSERVATIONS)
        """Times of the newest observations."""
        self._offset = 0

    def advance(self) -> bool:
        """Read up to SLICE_BYTES more. Return whether there is more to read. Raises OSError if there is no file."""
        with self._path.open("rb", buffering=0) as file:
            stat = os.fstat(file.fileno())
            if (stat.st_dev, stat.st_ino) != self._identity or stat.st_size < self._offset:
                self._reset()
                self._identity = stat.st_dev, stat.st_ino
            file.seek(self._offset)
            data = file.read(SLICE_BYTES)
        end = data.rfind(b"\n") + 1
        if not end and len(data) == SLICE_BYTES:
            end = len(data)  # no valid line is this long
        for line in data[:end].splitlines():
            if not _SKIPPED_TYPE.search(line, 0, _HEAD_BYTES):
                self._add_line(line)
        self._offset += end
        self.is_complete = self._offset >= stat.st_size or len(data) < SLICE_BYTES
        return not self.is_complete

    def _add_line(self, line: bytes) -> None:
        try:
            event = Event.from_line(line.decode())
        except (ValueError, KeyError, TypeError):
            self.unreadable_lines += 1
            return
        self.summary.feed(event)
        if isinstance(event.body, Observation):
            self.times.append(event.time)

    @property
    def pace_s(self) -> float:
        """Median seconds between the newest observations; NaN for fewer than two."""
        gaps = [(later - earlier).total_seconds() for earlier, later in pairwise(self.times)]
        return median(gaps) if gaps else math.nan


class _CachedRow(BaseModel):
    version: tuple[int, int]  # `_version` of the log from which the row was computed
    row: RunRow


class _Cache(BaseModel):
    format: Literal[3] = 3
    runs: dict[str, _CachedRow] = {}


class RunRows:
    """The rows of all runs in a home. `refresh` finds new runs, and `advance` reads their logs in slices."""

    def __init__(self, home: Home) -> None:
        self._home = home
        self._cache_file = home.cache / CACHE
        self._cache = _Cache()
        self._digests: dict[str, LogDigest] = {}
        self._versions: dict[str, tuple[int, int]] = {}  # run → `_version` of its log when it was last read
        self._folders: dict[str, RunFolder] = {}
        self.rows: dict[str, RunRow] = {}
        """Rows by run, newest first."""
        with contextlib.suppress(OSError, ValidationError):
            self._cache = _Cache.model_validate_json(self._cache_file.read_bytes())

    def refresh(self) -> None:
        """Find all runs and their status without reading their logs. Raises ConfigError if the home is unusable."""
        folders = self._home.runs()
        self._folders = {folder.run: folder for folder in folders}
        self.rows = {folder.run: self._with_status(folder) for folder in folders}

    def _with_status(self, folder: RunFolder) -> RunRow:
        info = folder.info()
        row = self.rows.get(folder.run) or self._from_cache(folder) or RunRow(folder.run)
        return replace(
            row, recipe=info.recipe, drill=info.drill, created=info.created, status=folder.status(), run=folder.run
        )

    def advance(self) -> Iterator[RunRow]:
        """Yield rows as they change, live runs first, until all logs have been read."""
        folders = sorted(self._folders.values(), key=lambda folder: self.rows[folder.run].status != "running")
        for folder in folders:
            has_more = self._needs_reading(folder)
            while has_more:
                row, has_more = self._read_slice(folder)
                if row != self.rows.get(folder.run):
                    self.rows[folder.run] = row
                    yield row

    def save(self) -> None:
        """Write the rows to the cache, if the home is writable."""
        cache = _Cache(
            runs={
                run: _CachedRow(version=self._versions[run], row=row)
                for run, row in self.rows.items()
                if row.is_complete and run in self._versions
            }
        )
        if cache != self._cache:
            with contextlib.suppress(OSError):
                self._cache_file.parent.mkdir(exist_ok=True)
                write_atomic(self._cache_file, cache.model_dump_json())
                self._cache = cache

    def _from_cache(self, folder: RunFolder) -> RunRow | None:
        cached = self._cache.runs.get(folder.run)
        try:
            if cached is None or cached.version != _version(folder.export):
                return None
        except OSError:
            return None
        self._versions[folder.run] = cached.version
        return cached.row

    def _needs_reading(self, folder: RunFolder) -> bool:
        row = self.rows[folder.run]
        try:
            return not row.is_complete or _version(folder.export) != self._versions.get(folder.run)
        except OSError:
            return not row.fault and row.status != "running"  # the log is missing, and `_read_slice` sets the fault

    def _read_slice(self, folder: RunFolder) -> tuple[RunRow, bool]:
        """Read one more slice of the log. Return the row and whether there is more to read."""
        row = self.rows[folder.run]
        digest = self._digests.setdefault(folder.run, LogDigest(folder.export))
        try:
            version = _version(folder.export)
            has_more = digest.advance()
        except FileNotFoundError:
            hint = (
                "open the run to read it from its store" if folder.has_store() else "the run ended before it wrote one"
            )
            return replace(row, fault=f"no log.jsonl yet; {hint}", is_complete=True), False
        except (OSError, OvenError) as error:
            return replace(row, fault=reason(error), is_complete=True), False
        self._versions[folder.run] = version
        if not has_more and row.status != "running":
            del self._digests[folder.run]  # only its row is needed from now on
        return _build_row(row, digest), has_more


def _build_row(row: RunRow, digest: LogDigest) -> RunRow:
    summary = digest.summary
    row = add_summary(row, summary)
    if not digest.is_complete:
        row = replace(row, adopted=None, rejected=None, would_set=0, advised=(), not_applied=0)
    return replace(
        row,
        malformed=row.malformed + digest.unreadable_lines,
        pace_s=finite_or_none(digest.pace_s),
        fault="" if summary.started or not digest.is_complete or row.status == "running" else NO_START_FAULT,
        is_complete=digest.is_complete,
    )


def _version(path: Path) -> tuple[int, int]:
    """Return the file's size and its modification time in ns."""
    stat = path.stat()
    return stat.st_size, stat.st_mtime_ns
