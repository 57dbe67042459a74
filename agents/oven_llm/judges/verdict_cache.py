"""Verdicts that were paid for, in a SQLite file, and a judge that looks there first.

Each member has its own file, so that no two processes write to it. It contains digests and scores, but no text or key.
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

from oven_core.protocol.committee_requests import ScoreRequest
from oven_llm.judges.judge import Judge
from oven_llm.judges.sanitize import visible
from oven_llm.judges.self_checks import SelfChecks
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.usage import CallTally
from oven_runs.home.model_spend import open_database

log = logging.getLogger("oven.member")

ROWS: Final = 100_000
"""Groups to keep; the oldest are deleted. About 20 MB with groups of eight."""
TRIMMED_EVERY: Final = 256
"""Verdicts between two deletions: deleting each time would double the writes."""
_TABLE = """
CREATE TABLE IF NOT EXISTS verdicts (
    id INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB NOT NULL UNIQUE, scores TEXT NOT NULL, sum BLOB NOT NULL
)
"""
_SUFFIXES = ("", "-wal", "-shm")


class VerdictCache:
    """A cache whose file never raises: a damaged one is renamed, and if the disk fails, groups are paid for again."""

    def __init__(self, path: Path, rows: int = ROWS) -> None:
        self.path = path
        self._rows = rows
        self._file: sqlite3.Connection | None = None
        self._reported = False
        self._puts = 0
        self._open()

    def get(self, key: bytes, count: int) -> list[float] | None:
        """The `count` scores stored under `key`, in the order of its texts; None if there are none."""
        row = self._do("SELECT scores, sum FROM verdicts WHERE key = ?", key)
        if row is None or row[1] != _sum(key, str(row[0])):  # SQLite does not detect changed bytes
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
        """Delete all verdicts."""
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
                if isinstance(error, sqlite3.OperationalError):  # no access or a full disk, rather than damage
                    raise
                self._set_aside(error)
        except (sqlite3.Error, OSError) as error:
            self._trouble(error)

    def _set_aside(self, error: sqlite3.Error) -> None:
        """Rename the damaged file, replacing an earlier one, and create a new file."""
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
        log.warning(
            "the cache of verdicts was damaged (%s): it was renamed to %s, and a new one was created", error, aside
        )

    def _do(self, statement: str, *values: object) -> tuple[Any, ...] | None:
        """Return the statement's first row. A damaged file is set aside, and the statement is lost."""
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
        if not self._reported:
            self._reported = True
            log.warning("the cache of verdicts at %s cannot be used (%s): groups are paid for again", self.path, error)


class CachedJudge:
    """A `Judge` that looks up verdicts first, by the visible part of the texts, whatever their ids.

    The cache does not interfere with controls. A group from the cache does not count towards the next control. A judge
    under suspicion or in quarantine does not use its cache, and quarantine deletes all earlier verdicts.
    """

    def __init__(self, judge: Judge, cache: VerdictCache, identity: str) -> None:
        """`identity` describes the model, its address and its options, and is unique to this judge."""
        self.judge = judge
        self._cache, self._identity = cache, identity

    @property
    def checks(self) -> SelfChecks:
        """The judge's checks."""
        return self.judge.checks

    async def score(self, request: ScoreRequest, tally: CallTally) -> dict[str, float]:
        """Return a score from 0 to 1 for each completion id. Raises ModelFailure."""
        texts = {completion.id: visible(completion.text).strip() for completion in request.completions}
        distinct = sorted(set(texts.values()))
        key = cache_key(self._identity, self.judge.instructions(request), visible(request.prompt).strip(), distinct)
        if self.judge.trusted and (cached := self._cache.get(key, len(distinct))) is not None:
            tally.health = self.judge.health
            by_text = dict(zip(distinct, cached, strict=True))
            return {completion: by_text[text] for completion, text in texts.items()}
        try:
            scores = await self.judge.score(request, tally)
        except ModelFailure as failure:
            if failure.kind == "fooled" and self.judge.quarantined:
                self._cache.forget()
            raise
        by_text = {text: scores[completion] for completion, text in texts.items()}
        self._cache.put(key, [by_text[text] for text in distinct])
        return scores

    async def close(self) -> None:
        """Close the judge; the cache belongs to the caller."""
        await self.judge.close()


def cache_key(judge: str, rubric: str, prompt: str, texts: Sequence[str]) -> bytes:
    """A digest of everything that a verdict depends on: the `judge` (provider, model, address), its `rubric` (role and
    what is trained), and the `prompt` and `texts` that it is shown. The order of `texts` counts."""
    return hashlib.sha256(json.dumps([judge, rubric, prompt, list(texts)]).encode()).digest()


def _sum(key: bytes, text: str) -> bytes:
    return hashlib.sha256(key + text.encode()).digest()[:8]
