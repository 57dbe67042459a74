"""Stores the diagnoses of the agent `supervisor` in the run's folder, for users and restarted agents."""

from __future__ import annotations

import json
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final

from oven_core.errors import ConfigError, reason
from oven_core.files import write_atomic
from oven_core.protocol.messages import Value
from oven_llm.diagnosis.graph_diagnosis import GraphView
from oven_llm.diagnosis.model_answer import ProposedChange
from oven_llm.diagnosis.model_diagnosis import DiagnosisResult

FOLDER: Final = "diagnoses"
"""Name of the diagnoses folder in the run's folder."""


@dataclass(frozen=True)
class DiagnosisRequest:
    """A request from the agent for one diagnosis."""

    number: int
    tick: int
    """Tick of the agent's latest observation."""
    values: Mapping[str, Value]
    """Values of the knobs at that tick. An answer is discarded if its knob has changed since that tick."""


class DiagnosisStore:
    """The stored diagnoses of a run. Raises OSError if writing fails.

    Each diagnosis has a folder with question.json, the logs of the conversation and outcome.json. Once the agent has
    used the answer, the folder also contains taken.json."""

    def __init__(self, run_folder: Path) -> None:
        self._folder = run_folder / FOLDER

    @property
    def count(self) -> int:
        """Number of diagnoses that were started, including unanswered ones and those before a restart."""
        return max(self._list_numbers(), default=0)

    def begin(self, request: DiagnosisRequest, seq: int, view: GraphView) -> Path:
        """Write the question and return its folder. The model sees `view` and the log up to the number `seq`."""
        self._folder_of(request.number).mkdir(parents=True, mode=0o700, exist_ok=True)
        question = {"tick": request.tick, "seq": seq, "values": dict(request.values), "graph": view.as_json()}
        self._write(request.number, "question", question)
        return self._folder_of(request.number)

    def end(self, number: int, result: DiagnosisResult) -> None:
        """Write the outcome of the diagnosis."""
        outcome = {
            "diagnosis": result.diagnosis.as_json() if result.diagnosis else None,
            "failure": result.failure_kind or None,
            "why": result.failure_reason,
            "ended": result.conversation.ended,
            "calls": result.conversation.calls,
            "cost_usd": result.conversation.cost_usd,
            "seconds": round(result.conversation.elapsed, 3),
        }
        self._write(number, "outcome", outcome)

    def record_use(self, number: int, tick: int, change: ProposedChange | None) -> None:
        """Record that the agent used the answer, and the change that it may revert later. Does nothing if the diagnosis
        has no folder, because it failed before its question was written."""
        if self._folder_of(number).is_dir():
            content = change.model_dump(mode="json", by_alias=True) if change else None
            self._write(number, "taken", {"tick": tick, "change": content})

    def latest_change(self) -> ProposedChange | None:
        """Return the latest change that may be reverted. Raises ConfigError if a file cannot be read."""
        for number in sorted(self._list_numbers(), reverse=True):
            path = self._folder_of(number) / "taken.json"
            try:
                change = json.loads(path.read_bytes()).get("change") if path.is_file() else None
                if change:
                    return ProposedChange.model_validate(change)
            except (OSError, ValueError, AttributeError) as error:
                raise ConfigError(
                    f"{path} does not contain a proposed change ({reason(error)}); move the file away"
                ) from None
        return None

    def _folder_of(self, number: int) -> Path:
        return self._folder / f"{number:03}"

    def _write(self, number: int, name: str, content: dict[str, Any]) -> None:
        write_atomic(self._folder_of(number) / f"{name}.json", json.dumps(content), private=True)

    def _list_numbers(self) -> list[int]:
        return [int(path.name) for path in self._folder.glob("*") if path.name.isdigit()]
