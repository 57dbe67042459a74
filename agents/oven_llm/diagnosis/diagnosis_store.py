"""A run's diagnoses on disk: the question, the conversation, the outcome, and the vote that used it.

Each diagnosis has a folder under `diagnoses` in the run's folder: question.json, the three logs of the conversation,
outcome.json, and taken.json once a vote has used the answer. `backtest supervisor RUN` repeats a diagnosis from these
files and the run's log without calling a model: it runs the same programs on the same log with the recorded answers.
"""

from __future__ import annotations

import asyncio
import json
import shutil
import tempfile
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from oven_core.errors import ConfigError, reason
from oven_core.files import read_file, write_atomic
from oven_core.protocol.events import Event
from oven_core.protocol.messages import Value
from oven_llm.diagnosis.diagnosing import DiagnosisResult, diagnose
from oven_llm.diagnosis.graph_view import GraphView
from oven_llm.diagnosis.log_context import context_of
from oven_llm.providers.conversation import Messages, ModelReply
from oven_llm.providers.failures import ModelFailure
from oven_llm.supervisor.log import FILES, events
from oven_llm.supervisor.models import ModelHandler

FOLDER: Final = "diagnoses"
"""Name of the folder in the run's folder."""
FILE_BYTES: Final = 1 << 20
"""Maximum size of a question or an outcome. Typical sizes are a few thousand bytes."""


@dataclass(frozen=True)
class DiagnosisRequest:
    """The part of a question that the vote needs."""

    number: int
    tick: int
    values: Mapping[str, Value]
    """Knob → its value at the time of the question."""


@dataclass(frozen=True)
class Question:
    """A request for a diagnosis, with the agent's state at that time."""

    number: int
    tick: int
    """Tick of the agent's newest observation."""
    seq: int
    """Sequence of the newest event in the context."""
    values: Mapping[str, Value]
    """Knob → its value at the time. If the value has changed since, the answer is void."""
    view: GraphView

    def plain(self) -> dict[str, Any]:
        return {"tick": self.tick, "seq": self.seq, "values": dict(self.values), "graph": self.view.plain()}


@dataclass(frozen=True)
class StoredDiagnosis:
    """A diagnosis on disk."""

    question: Question
    folder: Path
    used_at: int | None
    """Tick of the vote that used the answer, or None."""
    outcome: Mapping[str, Any]
    """The content of outcome.json; empty if the file is missing."""


class DiagnosisStore:
    """The stored diagnoses of one run. Raises ConfigError for a folder that cannot be read, OSError if writing
    fails."""

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder / FOLDER

    @property
    def count(self) -> int:
        """The number of diagnoses ever begun, answered or not, including those before a restart."""
        return max(self._numbers(), default=0)

    def begin(self, question: Question) -> Path:
        """Write the question and return its folder."""
        folder = self._path(question.number)
        folder.mkdir(parents=True, mode=0o700, exist_ok=True)
        write_atomic(folder / "question.json", json.dumps(question.plain()), private=True)
        return folder

    def end(self, number: int, result: DiagnosisResult) -> None:
        """Write the outcome for people and statistics. A backtest recomputes it."""
        outcome = {
            "diagnosis": result.diagnosis.plain() if result.diagnosis else None,
            "failure": result.kind or None,
            "why": result.why,
            "ended": result.result.ended,
            "calls": result.result.calls,
            "cost_usd": result.cost_usd,
            "seconds": round(result.result.elapsed, 3),
        }
        write_atomic(self._path(number) / "outcome.json", json.dumps(outcome), private=True)

    def take(self, number: int, tick: int) -> None:
        """Record that a vote at that tick used the answer. Does nothing for a question that was never begun."""
        if self._path(number).is_dir():
            write_atomic(self._path(number) / "taken.json", json.dumps({"tick": tick}), private=True)

    def stored(self) -> list[StoredDiagnosis]:
        """Return all diagnoses in order. Raises ConfigError for one that cannot be read."""
        return [self._read(number) for number in sorted(self._numbers())]

    def _path(self, number: int) -> Path:
        return self._folder / f"{number:03}"

    def _numbers(self) -> list[int]:
        if not self._folder.is_dir():
            return []
        return [int(path.name) for path in self._folder.iterdir() if path.name.isdigit()]

    def _read(self, number: int) -> StoredDiagnosis:
        folder = self._path(number)
        try:
            content = json.loads(read_file(folder / "question.json", "a stored diagnosis", FILE_BYTES))
            graph = content["graph"]
            view = GraphView(
                tuple((item["cause"], float(item["rank"])) for item in graph["ranked"]),
                tuple((item["remedy"], tuple(item["changes"])) for item in graph["remedies"]),
                frozenset(graph["causes"]),
            )
            question = Question(number, int(content["tick"]), int(content["seq"]), content["values"], view)
            use, outcome = (_object(folder / name) for name in ("taken.json", "outcome.json"))
            return StoredDiagnosis(question, folder, use.get("tick"), outcome)
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise ConfigError(f"{folder} does not hold a stored diagnosis ({reason(error)}); move it away") from None


def _object(path: Path) -> dict[str, Any]:
    """Return the JSON object in a file, or an empty dict if the file is missing. Raises ConfigError and ValueError."""
    if not path.is_file():
        return {}
    content = json.loads(read_file(path, "a stored diagnosis", FILE_BYTES))
    if not isinstance(content, dict):
        raise ValueError(f"{path.name} is not an object")
    return content


class NoCallsModel(ModelHandler):
    """A model that is never called: a request without a recorded answer fails."""

    def __init__(self, model: str) -> None:
        self.model = model

    def chat(self, messages: Messages) -> ModelReply:
        raise ModelFailure("not_configured", "the recorded conversation has no answer to this, and no call is made")


def repeat(
    stored: StoredDiagnosis, log: Sequence[Event], knobs: Sequence[str], config: dict[str, object]
) -> DiagnosisResult:
    """Repeat a diagnosis without calling a model. `log` holds the run's verified events. Events after the question are
    ignored."""
    with tempfile.TemporaryDirectory(prefix="oven-repeat-") as scratch:
        log_dir = Path(scratch)
        for name in FILES:
            if (stored.folder / name).is_file():
                shutil.copyfile(stored.folder / name, log_dir / name)
        supervisor, worker = (
            NoCallsModel(_recorded_model(stored.folder / f"{role}.jsonl")) for role in ("supervisor", "worker")
        )
        return asyncio.run(
            diagnose(
                context_of(log, seq=stored.question.seq),
                stored.question.view,
                supervisor,
                worker,
                knobs=knobs,
                log_dir=log_dir,
                resume=True,
                config=config,
            )
        )


def _recorded_model(log: Path) -> str:
    """Return the model's name in the recorded calls, empty without calls. Raises ConfigError for an unreadable log."""
    first = next(events(log), None) if log.is_file() else None
    return "" if first is None else str(first.get("model", ""))
