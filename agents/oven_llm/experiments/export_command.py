"""`supervise export`: what scored, as rows to train on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated

import typer

from oven_core.errors import ConfigError
from oven_core.files import write_atomic
from oven_core.plugged_command import PluggedCommand
from oven_llm.experiments.analysis import runs_in
from oven_llm.experiments.training_rows import exported
from oven_llm.supervisor.log import Role


def _export(
    paths: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Folders of runs, or folders that hold such folders.")
    ],
    role: Annotated[Role, typer.Option(help="Whose calls: the supervisor's or the worker's.")] = "supervisor",
    least_score: Annotated[float, typer.Option(metavar="SCORE", help="Least score of a question, 0 to 1.")] = 1.0,
    out: Annotated[
        Path | None, typer.Option("--out", metavar="FILE", help="JSON lines.", show_default="ROLE-rows.jsonl in DIR")
    ] = None,
    as_json: Annotated[bool, typer.Option("--json", help="Print what was written as JSON.")] = False,
) -> int:
    if not 0 <= least_score <= 1:
        raise ConfigError(f"--least-score {least_score:g}: give 0 to 1")
    found = exported(runs_in(paths), role, least_score)
    if not found.rows:
        raise ConfigError(
            f"none of {found.of} questions with a score of {least_score:g} or more has a call of the {role} to learn "
            "from; lower --least-score, or measure more questions"
        )
    file = out or paths[0] / f"{role}-rows.jsonl"
    write_atomic(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in found.rows))
    said = {"file": str(file), "rows": len(found.rows), "questions": found.questions, "left_out": found.left_out}
    if as_json:
        print(json.dumps(said))
    else:
        print(f"{file}: {len(found.rows)} rows of {found.questions} of {found.of} questions, {found.left_out} left out")
    return 0


EXPORT = PluggedCommand(
    "supervise",
    "export",
    "Write what scored as rows for TRL's SFTTrainer: conversations of the supervisor or the worker.",
    "logs/stdlib/20260211-163519 --role supervisor",
    _export,
)
