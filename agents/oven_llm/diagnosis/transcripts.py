"""A run's diagnoses as they are kept: what was known when one was asked for, the conversation, and when it was
answered.

A folder for each under `diagnoses` in the run's folder: question.json, the three logs of the conversation,
outcome.json, and taken.json once its answer has come to a vote. With them and the run's log all of it can be done
again without a call (`backtest supervisor RUN`)."""

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
from oven_llm.diagnosis.diagnosing import Found, diagnose
from oven_llm.diagnosis.graph_view import GraphView
from oven_llm.diagnosis.log_context import context_of
from oven_llm.providers.failures import ModelFailure
from oven_llm.supervisor.log import FILES, events
from oven_llm.supervisor.models import LMResponse, Messages, ModelHandler


class Silent(ModelHandler):
    """A model that is not asked: what the kept conversation does not answer fails."""

    def __init__(self, model: str) -> None:
        self.model = model

    def chat(self, messages: Messages) -> LMResponse:
        raise ModelFailure("not_configured", "the kept conversation has no answer to this, and no call is made")


def recalled(kept: Kept, log: Sequence[Event], knobs: Sequence[str], config: dict[str, object]) -> Found:
    """`log`: the run's, judged; the context is made of what it held then."""
    with tempfile.TemporaryDirectory(prefix="oven-recall-") as scratch:
        place = Path(scratch)
        for name in FILES:
            if (kept.folder / name).is_file():
                shutil.copyfile(kept.folder / name, place / name)
        supervisor, worker = (Silent(_model(kept.folder / f"{role}.jsonl")) for role in ("supervisor", "worker"))
        return asyncio.run(
            diagnose(
                context_of(log, seq=kept.question.seq),
                kept.question.seen,
                supervisor,
                worker,
                knobs=knobs,
                log_dir=place,
                resume=True,
                config=config,
            )
        )


def _model(log: Path) -> str:
    """As the kept calls name it; empty where there are none. Raises ConfigError for a log that cannot be read."""
    first = next(events(log), None) if log.is_file() else None
    return "" if first is None else str(first.get("model", ""))


FOLDER: Final = "diagnoses"
"""Of the run's folder."""
FILE_BYTES: Final = 1 << 20
"""Of a question or an outcome at most; they have a few thousand."""


@dataclass(frozen=True)
class Asked:
    """What one question was about, as the vote needs it."""

    number: int
    tick: int
    values: Mapping[str, Value]
    """Knob → its value when it was asked."""


@dataclass(frozen=True)
class Question:
    """What was known when a diagnosis was asked for."""

    number: int
    tick: int
    """Of the newest observation that the agent had."""
    seq: int
    """The log's newest event that the context holds."""
    values: Mapping[str, Value]
    """Knob → its value then: one that has moved since makes the answer void."""
    seen: GraphView

    def plain(self) -> dict[str, Any]:
        return {"tick": self.tick, "seq": self.seq, "values": dict(self.values), "graph": self.seen.plain()}


@dataclass(frozen=True)
class Kept:
    """A diagnosis that was kept."""

    question: Question
    folder: Path
    taken: int | None
    """The tick of the vote that took its answer; None: none did."""
    outcome: Mapping[str, Any]
    """As it was kept for people; empty while there is none."""


class Transcripts:
    """Of one run. Raises ConfigError for a folder that cannot be read, OSError where nothing can be written."""

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder / FOLDER

    @property
    def count(self) -> int:
        """Diagnoses that were begun, answered or not, in earlier incarnations, too."""
        return max(self._numbers(), default=0)

    def place(self, number: int) -> Path:
        return self._folder / f"{number:03}"

    def begin(self, question: Question) -> Path:
        """Its folder, with the question in it."""
        place = self.place(question.number)
        place.mkdir(parents=True, mode=0o700, exist_ok=True)
        write_atomic(place / "question.json", json.dumps(question.plain()), private=True)
        return place

    def end(self, number: int, found: Found) -> None:
        """The outcome, for people and for those who count; a backtest works it out again."""
        outcome = {
            "diagnosis": found.diagnosis.plain() if found.diagnosis else None,
            "failure": found.kind or None,
            "why": found.why,
            "ended": found.result.ended,
            "calls": found.result.calls,
            "cost_usd": found.cost_usd,
            "seconds": round(found.result.elapsed, 3),
        }
        write_atomic(self.place(number) / "outcome.json", json.dumps(outcome), private=True)

    def take(self, number: int, tick: int) -> None:
        """That the answer came to a vote at that tick. Of a question that was never begun nothing is kept."""
        if not self.place(number).is_dir():
            return
        write_atomic(self.place(number) / "taken.json", json.dumps({"tick": tick}), private=True)

    def kept(self) -> list[Kept]:
        """All of them, in their order. Raises ConfigError for one that cannot be read."""
        return [self._kept(number) for number in sorted(self._numbers())]

    def _numbers(self) -> list[int]:
        if not self._folder.is_dir():
            return []
        return [int(path.name) for path in self._folder.iterdir() if path.name.isdigit()]

    def _kept(self, number: int) -> Kept:
        place = self.place(number)
        try:
            said = json.loads(read_file(place / "question.json", "a kept diagnosis", FILE_BYTES))
            graph = said["graph"]
            seen = GraphView(
                tuple((one["cause"], float(one["rank"])) for one in graph["ranked"]),
                tuple((one["remedy"], tuple(one["changes"])) for one in graph["remedies"]),
                frozenset(graph["causes"]),
            )
            question = Question(number, int(said["tick"]), int(said["seq"]), said["values"], seen)
            return Kept(question, place, _read(place / "taken.json").get("tick"), _read(place / "outcome.json"))
        except (ValueError, LookupError, TypeError, RecursionError) as error:
            raise ConfigError(f"{place} does not hold a kept diagnosis ({reason(error)}); move it away") from None


def _read(path: Path) -> dict[str, Any]:
    """An object; empty where there is no such file. Raises ConfigError and ValueError."""
    if not path.is_file():
        return {}
    found = json.loads(read_file(path, "a kept diagnosis", FILE_BYTES))
    if not isinstance(found, dict):
        raise ValueError(f"{path.name} is not an object")
    return found
