"""Measured runs and their baselines in figures.

What Supervisor Distillation wrote can be read, too: results.csv and the calls' logs are enough for its nine columns.
"""

from __future__ import annotations

import csv
import io
import json
import math
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeVar

from oven_core.errors import ConfigError, reason
from oven_core.files import longest_csv_field, read_file
from oven_llm.experiments.intervals import Interval, clustered
from oven_llm.experiments.run_folder import BASELINES, CONFIG, RESULTS
from oven_llm.providers.usage import Usage
from oven_llm.supervisor.log import events
from oven_llm.tasks.example import KINDS

_Figure = TypeVar("_Figure", int, float)
FIGURES: Final = ("score", "answer_f1", "evidence_f1", "usd")
"""Columns of tables with figures."""
AGREES: Final = 0.5
"""Answer F1 from which it says that an answer is correct, where it is compared with the judge by κ."""
MOST_BYTES: Final = 1 << 29
"""Of one file of a run."""
MARKS: Final = {"cut": "text cut to the window", "retrieval": "keyword retrieval", "no_model": "no model"}
"""Baselines, as the table calls them."""


@dataclass(frozen=True)
class Row:
    """A run, or one of its baselines. What was not measured is None."""

    run: str
    supervisor: str
    worker: str
    correct: float
    scored: int
    """Questions with a score; errors, and answers without a verdict, are not among them."""
    errors: int
    steps: int | None
    supervisor_in: int | None
    supervisor_out: int | None
    worker_in: int | None
    worker_out: int | None
    answer_f1: Interval | None
    evidence_f1: Interval | None
    by_kind: dict[str, float]
    """Answer F1 of the questions of a kind, as the official scorer parts them."""
    missing: int
    """Questions without an answer that no failed call explains: 0 in the official scores."""
    usd: float | None
    kappa: float | None
    """Between the judge and answer F1 of `AGREES` or more; None: there was no judge."""
    judge: str
    """Empty: accuracy is exact match."""
    failed: dict[str, int]
    """Errors, by whose calls failed and how."""
    gain: Interval | None = None
    """Of a baseline: the supervisor's answer F1 minus its own, on the questions that both have."""

    @property
    def questions(self) -> int:
        return self.scored + self.errors


def runs_in(paths: Sequence[Path]) -> list[Path]:
    """Folders of runs: each that is named, or those in it. Raises ConfigError where there are none."""
    found: list[Path] = []
    for path in paths:
        if not path.is_dir():
            raise ConfigError(f"there is no folder {path}; `supervise run` prints where it writes")
        inside = sorted(one.parent for one in path.glob(f"*/{RESULTS}"))
        found += [path] if (path / RESULTS).is_file() else inside
        if not (path / RESULTS).is_file() and not inside:
            raise ConfigError(f"{path} holds no run: there is no {RESULTS} in it, or in a folder in it")
    return list(dict.fromkeys(found))


def analysed(path: Path) -> list[Row]:
    """The run, then its baselines. Raises ConfigError where a file cannot be read."""
    rows, config = table_rows(path / RESULTS), _config(path)
    if not rows:
        raise ConfigError(f"{path / RESULTS} has no questions yet; `supervise run --resume {path}` continues it")
    folders = [path / f"{number:03}" for number in range(len(rows))]
    named = [path / Path(row["log_path"]).name for row in rows if row.get("log_path")]
    calls = [_calls(folder, role) for role in ("supervisor", "worker") for folder in (named or folders)]
    supervisor, worker = calls[: len(calls) // 2], calls[len(calls) // 2 :]
    judge = str(config.get("judge_model") or "")
    first = Row(
        run=str(path),
        supervisor=_model(supervisor, config, "supervisor_model"),
        worker=_model(worker, config, "worker_model"),
        **_measured(rows, judge),
        steps=sum(one.answered for one in supervisor),
        supervisor_in=_sum([one.tokens_in for one in supervisor]),
        supervisor_out=_sum([one.tokens_out for one in supervisor]),
        worker_in=_sum([one.tokens_in for one in worker]),
        worker_out=_sum([one.tokens_out for one in worker]),
        usd=_sum([one.usd for one in (*supervisor, *worker)]) if config else None,
        judge=judge,
    )
    others = table_rows(path / BASELINES) if (path / BASELINES).is_file() else []
    return [first, *(_baseline(first, name, rows, others) for name in dict.fromkeys(row["baseline"] for row in others))]


def _baseline(first: Row, name: str, rows: Sequence[Mapping[str, str]], others: Sequence[Mapping[str, str]]) -> Row:
    own = [row for row in others if row["baseline"] == name]
    asked = name != "no_model"
    return Row(
        run=first.run,
        supervisor=f"– {MARKS.get(name, name)}",
        worker=first.worker if asked else "–",
        **_measured(own, first.judge),
        steps=None,
        supervisor_in=None,
        supervisor_out=None,
        worker_in=_sum([_count(row["tokens_in"]) for row in own]) if asked else None,
        worker_out=_sum([_count(row["tokens_out"]) for row in own]) if asked else None,
        usd=_sum([_number(row["usd"]) for row in own]),
        judge=first.judge,
        gain=_gain(rows, own),
    )


def _measured(rows: Sequence[Mapping[str, str]], judge: str) -> dict[str, Any]:
    scores = [score for row in rows if (score := _number(row.get("score", ""))) is not None]
    judged = [row for row in rows if _number(row.get("score", "")) is not None and row.get("answer_f1")]
    verdicts = [float(row["score"]) >= 1 for row in judged]
    return {
        "correct": sum(scores),
        "scored": len(scores),
        "errors": len(rows) - len(scores),
        "failed": dict(sorted(Counter(_failure(row) for row in rows if not row.get("score")).items())),
        "answer_f1": _interval(rows, "answer_f1"),
        "evidence_f1": _interval(rows, "evidence_f1"),
        "by_kind": _by_kind(rows),
        "missing": sum(bool(row.get("answer_f1")) and not row.get("kind") for row in rows),
        "kappa": kappa(verdicts, [float(row["answer_f1"]) >= AGREES for row in judged]) if judge else None,
    }


def _failure(row: Mapping[str, str]) -> str:
    judge = row.get("judge_error", "")
    return row.get("error") or (f"judge: {judge}" if judge else "not said")


def _by_kind(rows: Sequence[Mapping[str, str]]) -> dict[str, float]:
    found = {kind: [float(row["answer_f1"]) for row in rows if row.get("kind") == kind] for kind in KINDS}
    return {kind: sum(values) / len(values) for kind, values in found.items() if values}


def _interval(rows: Sequence[Mapping[str, str]], column: str) -> Interval | None:
    found = [(float(row[column]), row["doc_id"]) for row in rows if row.get(column)]
    return clustered([one for one, _ in found], [document for _, document in found]) if found else None


def _gain(rows: Sequence[Mapping[str, str]], own: Sequence[Mapping[str, str]]) -> Interval | None:
    mine = {row["id"]: float(row["answer_f1"]) for row in own if row["answer_f1"]}
    pairs = [
        (float(row["answer_f1"]) - mine[row["id"]], row["doc_id"])
        for row in rows
        if row.get("answer_f1") and row["id"] in mine
    ]
    return clustered([one for one, _ in pairs], [document for _, document in pairs]) if pairs else None


@dataclass(frozen=True)
class _Calls:
    """One role's calls in one question."""

    model: str = ""
    answered: int = 0
    tokens_in: int | None = 0
    tokens_out: int | None = 0
    usd: float | None = 0.0


def _calls(folder: Path, role: str) -> _Calls:
    path = folder / f"{role}.jsonl"
    lines = [one for one in events(path) if "response" in one] if path.is_file() else []
    try:
        usages = [Usage.read(one["usage"]) if one.get("usage") is not None else None for one in lines]
    except ValueError as error:
        raise ConfigError(f"the log {path} is damaged: {error}") from error
    return _Calls(
        str(lines[0].get("model", "")) if lines else "",
        len(lines),
        _sum([None if one is None else one.input_tokens for one in usages]),
        _sum([None if one is None else one.output_tokens for one in usages]),
        _sum([one.get("usd") for one in lines]),
    )


def kappa(first: Sequence[bool], second: Sequence[bool]) -> float | None:
    """Cohen's (1960) κ between two raters, −1 to 1; 0 is what chance gives. None without answers, and where both say
    one and the same throughout, so that chance agrees fully. Raises ValueError for unlike lengths."""
    pairs = list(zip(first, second, strict=True))
    if not pairs:
        return None
    agreed = sum(one == other for one, other in pairs) / len(pairs)
    yes, also = sum(first) / len(pairs), sum(second) / len(pairs)
    chance = yes * also + (1 - yes) * (1 - also)
    return None if chance == 1 else (agreed - chance) / (1 - chance)


def table_rows(path: Path) -> list[dict[str, str]]:
    """A table's rows, in whose columns of figures is a finite number, or nothing. Raises ConfigError."""
    text = read_file(path, "the table", MOST_BYTES).decode(errors="replace")
    try:
        with longest_csv_field(MOST_BYTES):
            rows = list(csv.DictReader(io.StringIO(text, newline="")))
        for number, row in enumerate(rows, 1):
            _check_figures(number, row)
    except (csv.Error, ValueError) as error:
        raise ConfigError(f"{path} is damaged: {reason(error)}; `supervise run --resume` writes it anew") from error
    return rows


def _check_figures(number: int, row: Mapping[str, str | None]) -> None:
    """Raises ValueError."""
    if None in row.values() or None in row:
        raise ValueError(f"row {number} has more or fewer fields than the first line")
    for column in FIGURES:
        if (text := row.get(column)) and not math.isfinite(float(text)):
            raise ValueError(f"row {number} has {column} {text}")


def _config(path: Path) -> dict[str, Any]:
    """Empty for a run of Supervisor Distillation's, which has none."""
    try:
        found = json.loads(read_file(path / CONFIG, "the run's settings")) if (path / CONFIG).is_file() else {}
    except ValueError as error:
        raise ConfigError(f"{path / CONFIG} is damaged: {reason(error)}") from error
    return found if isinstance(found, dict) else {}


def _model(calls: Sequence[_Calls], config: Mapping[str, Any], name: str) -> str:
    found = next((one.model for one in calls if one.model), "") or str(config.get(name, ""))
    return found.rsplit("/", 1)[-1] or "?"


def _sum(figures: Sequence[_Figure | None]) -> _Figure | None:
    """None where one of them is not known."""
    known = [figure for figure in figures if figure is not None]
    return sum(known) if len(known) == len(figures) else None


def _count(text: str) -> int | None:
    return int(text) if text else None


def _number(text: str) -> float | None:
    return float(text) if text else None
