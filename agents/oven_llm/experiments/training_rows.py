"""Rows to train a smaller supervisor or worker on, out of what scored: prompt and completion, as TRL's SFTTrainer reads
conversations. Logs of Supervisor Distillation can be read, too."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from oven_llm.experiments.analysis import table_rows
from oven_llm.experiments.run_folder import RESULTS
from oven_llm.supervisor.log import Role, events


@dataclass(frozen=True)
class Exported:
    """Rows, and the questions that they come from. `left_out`: calls of these whose programs failed, or had none."""

    rows: list[dict[str, Any]]
    questions: int
    of: int
    left_out: int


def exported(runs: Sequence[Path], role: Role, least_score: float) -> Exported:
    """From all questions with a score of at least `least_score`. Raises ConfigError where a file cannot be read."""
    rows: list[dict[str, Any]] = []
    questions = total = left_out = 0
    for run in runs:
        for number, result in enumerate(table_rows(run / RESULTS)):
            total += 1
            if not result.get("score") or float(result["score"]) < least_score:
                continue
            questions += 1
            name = Path(result["log_path"]).name if result.get("log_path") else f"{number:03}"
            calls = _calls(run / name, role)
            good = _steps_that_ran(run / name) if role == "supervisor" else None
            kept = [one for one in calls if good is None or one["step"] in good]
            left_out += len(calls) - len(kept)
            rows += [_row(one, str(result["id"])) for one in kept]
    return Exported(rows, questions, total, left_out)


def _calls(folder: Path, role: Role) -> list[dict[str, Any]]:
    """Calls that were answered. Of the supervisor's those that led to the end: a question that was put again after the
    worker had failed has turns of the first time, too, which the second time took the place of."""
    found: list[dict[str, Any]] = []
    for one in events(folder / f"{role}.jsonl"):
        if one.get("response"):
            while role == "supervisor" and found and found[-1]["step"] >= one["step"]:
                found.pop()
            found.append(one)
    return found


def _steps_that_ran(folder: Path) -> set[Any]:
    """Turns that had programs, all of which ran to their end."""
    ran: dict[Any, bool] = {}
    for one in events(folder / "repl.jsonl"):
        good = one["ended"] == "completed" if "ended" in one else not one.get("stderr")
        ran[one.get("step")] = ran.get(one.get("step"), True) and good and not one.get("refused")
    return {step for step, good in ran.items() if good}


def _row(call: Mapping[str, Any], question: str) -> dict[str, Any]:
    asked = call.get("messages") or [{"role": "user", "content": call.get("prompt", "")}]
    return {
        "prompt": [{"role": one["role"], "content": one["content"]} for one in asked],
        "completion": [{"role": "assistant", "content": call["response"]}],
        "question_id": question,
        "step": call.get("step"),
    }
