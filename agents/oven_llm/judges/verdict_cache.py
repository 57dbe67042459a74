"""Verdicts that were paid for, in a SQLite file: the same group is not asked for twice in a run.

One file a member, so that no two processes write to it. It holds digests and scores; no text, and no key.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import logging
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from oven_runs.home.sqlite_file import open_database

log = logging.getLogger("oven.member")

ROWS: Final = 100_000
"""Groups that are kept; beyond it the oldest go. About 20 MB with groups of eight."""
TRIMMED_EVERY: Final = 256
"""Verdicts after which the file is cut to that many rows again: to do it each time would double the writing."""
_TABLE = """
CREATE TABLE IF NOT EXISTS verdicts (
    id INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB NOT NULL UNIQUE, scores TEXT NOT NULL, sum BLOB NOT NULL
)
"""
_SUFFIXES = ("", "-wal", "-shm")


class VerdictCache:
    """Never raises for the file's sake: one that is damaged is set aside, and a disk that takes nothing costs money
    and no scores."""

    def __init__(self, path: Path, rows: int = ROWS) -> None:
        self.path = path
        self._rows = rows
        self._file: sqlite3.Connection | None = None
        self._told = False
        self._puts = 0
        self._open()

    def get(self, key: bytes, count: int) -> list[float] | None:
        """The scores under `key`, `count` of them, in the order of its texts; None where there are none."""
        row = self._do("SELECT scores, sum FROM verdicts WHERE key = ?", key)
        if row is None or row[1] != _sum(key, str(row[0])):  # SQLite does not notice a byte that changed on the disk
            return None
        scores = [float(score) for score in json.loads(row[0])]
        return scores if len(scores) == count else None

    def put(self, key: bytes, scores: Sequence[float]) -> None:
        text = json.dumps(list(scores))
        self._do("INSERT OR REPLACE INTO verdicts (key, scores, sum) VALUES (?, ?, ?)", key, text, _sum(key, text))
        self._puts += 1
        if self._puts % min(TRIMMED_EVERY, self._rows) == 0:
            self._do("DELETE FROM verdicts WHERE id <= (SELECT MAX(id) FROM verdicts) - ?", self._rows)

    def forget(self) -> None:
        """All of it."""
        self._do("DELETE FROM verdicts")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _open(self) -> None:
        try:
            self.path.parent.mkdir(exist_ok=True)
            try:
                self._file = open_database(self.path, _TABLE)
            except sqlite3.DatabaseError as error:
                if isinstance(error, sqlite3.OperationalError):  # no access, no room: not damaged
                    raise
                self._set_aside(error)
        except (sqlite3.Error, OSError) as error:
            self._trouble(error)

    def _set_aside(self, error: sqlite3.Error) -> None:
        """Begin a new file beside the damaged one; an earlier damaged one goes."""
        if self._file is not None:
            with contextlib.suppress(sqlite3.Error):
                self._file.close()
        self._file = None
        aside = self.path.with_name(f"{self.path.name}.damaged")
        for suffix in _SUFFIXES:
            part = self.path.with_name(self.path.name + suffix)
            if part.exists():
                part.replace(aside.with_name(aside.name + suffix))
        self._file = open_database(self.path, _TABLE)
        log.warning("the cache of verdicts was damaged (%s): it is now %s, and a new one was begun", error, aside)

    def _do(self, statement: str, *values: object) -> tuple[Any, ...] | None:
        """The first row. What is damaged is set aside once; the statement is then lost, which costs a call."""
        if self._file is None:
            return None
        try:
            row: tuple[Any, ...] | None = self._file.execute(statement, values).fetchone()
            return row
        except sqlite3.OperationalError as error:
            self._trouble(error)
        except sqlite3.DatabaseError as error:
            try:
                self._set_aside(error)
            except (sqlite3.Error, OSError) as again:
                self._file = None
                self._trouble(again)
        return None

    def _trouble(self, error: Exception) -> None:
        if not self._told:
            self._told = True
            log.warning("the cache of verdicts at %s cannot be used (%s): groups are paid for again", self.path, error)


def cache_key(judge: str, rubric: str, prompt: str, texts: Sequence[str]) -> bytes:
    """A digest of all that a verdict depends on: `judge` says who gives it (provider, model, address), `rubric` is what
    it is told (its role and what is trained), `prompt` and `texts` what it is shown. The order of `texts` counts."""
    return hashlib.sha256(json.dumps([judge, rubric, prompt, list(texts)]).encode()).digest()


def _sum(key: bytes, text: str) -> bytes:
    return hashlib.sha256(key + text.encode()).digest()[:8]
