"""Caches a judge's verdicts in a SQLite file, so that the same group is never paid for twice.

Each member has its own file, so only one process writes to it. The file contains only digests and scores."""

from __future__ import annotations

import hashlib
import json
import logging
import sqlite3
from collections.abc import Sequence
from pathlib import Path
from typing import Any, Final

from oven_core.protocol.committee_requests import ScoreRequest
from oven_llm.judges.judge import Judge
from oven_llm.judges.sanitize import visible_text
from oven_llm.judges.self_checks import SelfChecks
from oven_llm.providers.failures import ModelFailure
from oven_llm.providers.usage import CallTally
from oven_runs.home.model_spend import open_database

log = logging.getLogger("oven.member")

MAX_ROWS: Final = 100_000
"""Maximum groups in the file, which is then about 20 MB for groups of eight. Older groups are deleted."""
TRIM_INTERVAL: Final = 256
"""Stored verdicts between two deletions of old ones. Deleting after every verdict would double the writes."""
_TABLE = """
CREATE TABLE IF NOT EXISTS verdicts (
    id INTEGER PRIMARY KEY AUTOINCREMENT, key BLOB NOT NULL UNIQUE, scores TEXT NOT NULL
)
"""


class VerdictCache:
    """A cache file of verdicts. If the file cannot be used, the cache stays empty. No method raises."""

    def __init__(self, path: Path, max_rows: int = MAX_ROWS) -> None:
        self._path, self._max_rows = path, max_rows
        self._file: sqlite3.Connection | None = None
        self._put_count = 0
        try:
            path.parent.mkdir(exist_ok=True)
            self._file = open_database(path, _TABLE)
        except (sqlite3.Error, OSError) as error:
            self._log_failure(error)

    def get(self, key: bytes, count: int) -> list[float] | None:
        """Return the `count` scores stored under `key`, in the order of the sorted texts; None if there are none."""
        row = self._execute("SELECT scores FROM verdicts WHERE key = ?", key)
        if row is None:
            return None
        scores = [float(score) for score in json.loads(row[0])]
        return scores if len(scores) == count else None

    def put(self, key: bytes, scores: Sequence[float]) -> None:
        self._execute("INSERT OR REPLACE INTO verdicts (key, scores) VALUES (?, ?)", key, json.dumps(list(scores)))
        self._put_count += 1
        if self._put_count % min(TRIM_INTERVAL, self._max_rows) == 0:
            self._execute("DELETE FROM verdicts WHERE id <= (SELECT MAX(id) FROM verdicts) - ?", self._max_rows)

    def clear(self) -> None:
        self._execute("DELETE FROM verdicts")

    def close(self) -> None:
        if self._file is not None:
            self._file.close()

    def _execute(self, statement: str, *values: object) -> tuple[Any, ...] | None:
        """Execute the statement and return its first row."""
        if self._file is None:
            return None
        try:
            row: tuple[Any, ...] | None = self._file.execute(statement, values).fetchone()
            return row
        except sqlite3.Error as error:
            self._file.close()
            self._file = None
            self._log_failure(error)
            return None

    def _log_failure(self, error: Exception) -> None:
        log.warning(
            "cannot use the verdict cache %s (%s): groups are paid for again; delete the file if it is damaged",
            self._path,
            error,
        )


class CachedJudge:
    """A `Judge` that first looks for a cached verdict. Texts are compared by their visible characters, without their
    ids. A group from the cache does not count towards the next control. After a failed control, the cache is not used
    until the judge passes a control. When a judge enters quarantine, all earlier verdicts are deleted."""

    def __init__(self, judge: Judge, cache: VerdictCache, identity: str) -> None:
        """`identity` describes the model, its address and its options, and is unique to this judge."""
        self.judge = judge
        self._cache, self._identity = cache, identity

    @property
    def checks(self) -> SelfChecks:
        return self.judge.checks

    async def score(self, request: ScoreRequest, tally: CallTally) -> dict[str, float]:
        """Return a score from 0 to 1 for each completion id. Raises ModelFailure."""
        texts = {completion.id: visible_text(completion.text).strip() for completion in request.completions}
        distinct_texts = sorted(set(texts.values()))
        prompt = visible_text(request.prompt).strip()
        key = cache_key(self._identity, self.judge.build_instructions(request), prompt, distinct_texts)
        cached_scores = self._cache.get(key, len(distinct_texts)) if self.judge.is_trusted else None
        if cached_scores is not None:
            tally.health = self.judge.health
            score_by_text = dict(zip(distinct_texts, cached_scores, strict=True))
            return {id_: score_by_text[text] for id_, text in texts.items()}
        try:
            scores = await self.judge.score(request, tally)
        except ModelFailure as failure:
            if failure.kind == "fooled" and self.judge.is_quarantined:
                self._cache.clear()
            raise
        score_by_text = {text: scores[id_] for id_, text in texts.items()}
        self._cache.put(key, [score_by_text[text] for text in distinct_texts])
        return scores

    async def close(self) -> None:
        """Close the judge. The caller must close the cache."""
        await self.judge.close()


def cache_key(identity: str, instructions: str, prompt: str, texts: Sequence[str]) -> bytes:
    """Return a digest of everything that a verdict depends on, including the order of `texts`."""
    return hashlib.sha256(json.dumps([identity, instructions, prompt, list(texts)]).encode()).digest()
