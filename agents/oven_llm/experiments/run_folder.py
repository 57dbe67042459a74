"""A measured run's folder: config.json, a numbered folder for each question, and the tables that are made of those.

logs/<task>/<timestamp>/config.json  results.csv  baselines.csv  predictions.jsonl  000/outcome.json  000/…
"""

from __future__ import annotations

import csv
import io
import json
from collections.abc import Iterable, Iterator, Sequence
from datetime import datetime
from pathlib import Path
from typing import Any, Final, TypeVar

from pydantic import BaseModel, ConfigDict, ValidationError

from oven_core.errors import ConfigError, reason
from oven_core.files import write_atomic
from oven_llm.tasks.example import Kind

CONFIG: Final = "config.json"
RESULTS: Final = "results.csv"
BASELINES: Final = "baselines.csv"
PREDICTIONS: Final = "predictions.jsonl"
OUTCOME: Final = "outcome.json"
TIMESTAMP: Final = "%Y%m%d-%H%M%S"

Model = TypeVar("Model", bound=BaseModel)


class _Record(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class RunConfig(_Record):
    """What a run was asked to do. It holds no key. `-n` and the like as on the command line."""

    task: str
    supervisor_model: str
    worker_model: str
    judge_model: str
    """Empty: none; the score is exact match then."""
    base_url: str
    worker_base_url: str
    """Empty: the same."""
    key_env: str
    worker_key_env: str
    """Of `worker_base_url`, if that is named: `key_env` is not sent there."""
    data: str
    data_sha256: str
    """Of the questions, so that a resumed run asks the same."""
    n: int
    seed: int
    max_iterations: int
    num_distractors: int
    worker_ctx_k: int
    concurrency: int
    budget_usd: float | None
    prompt: str
    text_evidence_only: bool
    baselines: bool
    version: str
    python: str


class Answered(_Record):
    """An answer to a question and its scores. `score` is the judge's verdict as 1 or 0, or exact match without a judge;
    None where the judge gave no verdict."""

    prediction: str | None = None
    """None: there was no answer; 0 in the official scores."""
    evidence: tuple[str, ...] = ()
    answer_f1: float | None = None
    evidence_f1: float | None = None
    """None where a call failed; 0 where there is no answer otherwise."""
    kind: Kind | None = None
    score: float | None = None
    judge_failure: str = ""
    failure: str = ""
    """Which call failed, or which cap was reached, of the supervisor's or the worker's: an error, which has no score at
    all."""
    tokens_in: int | None = None
    tokens_out: int | None = None
    """Of the calls that were answered; None where one of them did not say, or it is not known whether one was."""
    usd: float | None = None
    """US dollars of these calls; None where a price is not known."""


class Outcome(_Record):
    """One question. `ended` is the supervisor's run's."""

    id: str
    doc_id: str
    question: str
    label: str
    ended: str
    iterations: int
    supervised: Answered
    baselines: dict[str, Answered]
    elapsed: float
    """Seconds of the supervisor's run."""

    @property
    def settled(self) -> bool:
        """No call failed and no cap was reached: a resumed run leaves it as it is."""
        answers = (self.supervised, *self.baselines.values())
        return not any(one.failure or one.judge_failure for one in answers)


def new_folder(root: Path, task: str, now: datetime) -> Path:
    """`root`/`task`/timestamp, with a number where that is taken. Raises ConfigError."""
    first = root / task / now.strftime(TIMESTAMP)
    try:
        first.parent.mkdir(parents=True, exist_ok=True)
        for path in (first, *(first.with_name(f"{first.name}-{number}") for number in range(2, 1000))):
            try:
                path.mkdir()
            except FileExistsError:
                continue
            return path
    except OSError as error:
        raise ConfigError(f"--log-dir {root} cannot be written: {reason(error)}") from error
    raise ConfigError(f"{first} and 998 more folders are taken; wait a second")


class RunFolder:
    """Reads and writes one. Not for several processes at a time."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def example(self, number: int) -> Path:
        """The folder of the question with this number, from 0."""
        return self.path / f"{number:03}"

    def configure(self, config: RunConfig) -> None:
        write_atomic(self.path / CONFIG, config.model_dump_json(indent=1) + "\n")

    def config(self) -> RunConfig:
        """Raises ConfigError where there is none, or it is another program's."""
        if not (self.path / CONFIG).is_file():
            raise ConfigError(f"{self.path} is not a run of `supervise run`: it has no {CONFIG}")
        return _read(RunConfig, self.path / CONFIG)

    def outcome(self, number: int) -> Outcome | None:
        """None where the question is not done. Raises ConfigError."""
        path = self.example(number) / OUTCOME
        return _read(Outcome, path) if path.is_file() else None

    def keep(self, number: int, outcome: Outcome) -> None:
        write_atomic(self.example(number) / OUTCOME, outcome.model_dump_json(indent=1) + "\n")

    def write_tables(self, outcomes: Sequence[tuple[int, Outcome]]) -> None:
        """The tables of what is done so far, in the order of the numbers."""
        write_atomic(self.path / RESULTS, _csv(_result(self.example(number), one) for number, one in outcomes))
        write_atomic(self.path / BASELINES, _csv(row for _, one in outcomes for row in _of_baselines(one)))
        lines = [_prediction(one) for _, one in outcomes if one.supervised.prediction is not None]
        write_atomic(self.path / PREDICTIONS, "".join(json.dumps(line, ensure_ascii=False) + "\n" for line in lines))


def _result(folder: Path, one: Outcome) -> dict[str, Any]:
    """Supervisor Distillation's columns first."""
    said = one.supervised
    return {
        "id": one.id,
        "doc_id": one.doc_id,
        "question": one.question,
        "log_path": str(folder),
        "label": one.label,
        "prediction": said.prediction,
        **_scores(said),
        "ended": one.ended,
        "iterations": one.iterations,
        "elapsed": round(one.elapsed, 3),
        "usd": said.usd,
    }


def _of_baselines(one: Outcome) -> Iterator[dict[str, Any]]:
    for name, said in one.baselines.items():
        yield {
            "id": one.id,
            "doc_id": one.doc_id,
            "baseline": name,
            "prediction": said.prediction,
            **_scores(said),
            "tokens_in": said.tokens_in,
            "tokens_out": said.tokens_out,
            "usd": said.usd,
        }


def _scores(said: Answered) -> dict[str, Any]:
    """An error has none: it is not a wrong answer."""
    return {
        "score": said.score,
        "answer_f1": said.answer_f1,
        "evidence_f1": said.evidence_f1,
        "kind": said.kind,
        "error": said.failure,
        "judge_error": said.judge_failure,
    }


def _prediction(one: Outcome) -> dict[str, Any]:
    """As the official scorer reads it."""
    return {
        "question_id": one.id,
        "predicted_answer": one.supervised.prediction,
        "predicted_evidence": list(one.supervised.evidence),
    }


def _csv(rows: Iterable[dict[str, Any]]) -> bytes:
    out, writer = io.StringIO(newline=""), None
    for row in rows:
        if writer is None:
            writer = csv.DictWriter(out, list(row))
            writer.writeheader()
        writer.writerow(row)
    return out.getvalue().encode(errors="backslashreplace")


def _read(model: type[Model], path: Path) -> Model:
    try:
        return model.model_validate_json(path.read_bytes())
    except (ValidationError, OSError) as error:
        raise ConfigError(f"{path} cannot be read: {reason(error)}; remove it to have it made again") from error
