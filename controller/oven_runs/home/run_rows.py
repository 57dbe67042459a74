"""The rows of a list of runs: state, step, target metric, decisions, alerts, age and pace of each run in a home.

A row is made from the digest of the run's log.jsonl, and kept in `cache/run-rows.json` with the file's size and time of
change: a list that is opened again reads only the logs that changed since.
"""

from __future__ import annotations

import json
import math
from collections.abc import Iterator
from dataclasses import asdict, replace
from datetime import UTC
from pathlib import Path
from typing import Any, Final

from pydantic import TypeAdapter, ValidationError

from oven_core.errors import OvenError, reason
from oven_core.files import write_atomic
from oven_runs.home.log_digest import LogDigest
from oven_runs.home.run_folder import Home, RunFolder
from oven_runs.log.run_row import RunRow

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
