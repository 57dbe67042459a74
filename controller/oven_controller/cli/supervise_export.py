"""The `supervise export` command: export the model calls behind answered questions as fine-tuning data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from oven_controller.cli.options import Json, print_result
from oven_core.errors import ConfigError
from oven_core.files import write_atomic
from oven_llm.supervisor.log import Role, events


def export(
    paths: Annotated[
        list[Path], typer.Argument(metavar="DIR…", help="Log folders of `supervise run`, or folders that hold them.")
    ],
    role: Annotated[Role, typer.Option(help="Export the calls of this model.")] = "supervisor",
    out: Annotated[
        Path | None,
        typer.Option("--out", metavar="FILE", help="JSON lines file to write.", show_default="ROLE-rows.jsonl in DIR"),
    ] = None,
    as_json: Json = False,
) -> int:
    """Write the calls of answered questions as rows for TRL's SFTTrainer.

    Example: oven-controller supervise export logs --role supervisor --out rows.jsonl
    """
    runs = run_folders(paths)
    rows, answered, skipped = training_rows(runs, role)
    if not rows:
        raise ConfigError(
            f"none of {len(runs)} runs has a call of the {role} to export: only runs that called FINAL count, and only "
            "turns whose programs completed"
        )
    file = out or paths[0] / f"{role}-rows.jsonl"
    write_atomic(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    line = f"{file}: {len(rows)} rows from {answered} answered runs of {len(runs)}, {skipped} calls skipped"
    print_result(as_json, {"file": str(file), "rows": len(rows), "answered": answered, "skipped": skipped}, [line])
    return 0


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """Return each path that is a run's log folder, and the log folders directly inside the others. Raises ConfigError
    if a path has neither."""
    folders: list[Path] = []
    for path in paths:
        runs = [path] if (path / "repl.jsonl").is_file() else sorted(log.parent for log in path.glob("*/repl.jsonl"))
        if not runs:
            raise ConfigError(f"{path} holds no log of `supervise run --log-dir`: there is no repl.jsonl in it")
        folders += runs
    return list(dict.fromkeys(folders))


def training_rows(runs: Sequence[Path], role: Role) -> tuple[list[dict[str, Any]], int, int]:
    """Return one row for each call of the answered runs, the number of these runs, and the number of skipped calls,
    which have no program or a failed one. A row has `prompt` and `completion` as conversations for TRL's SFTTrainer.
    Raises ConfigError if a log cannot be read."""
    rows: list[dict[str, Any]] = []
    answered = skipped = 0
    for run in runs:
        programs = list(events(run / "repl.jsonl"))
        if not any(program.get("answer") for program in programs):
            continue
        answered += 1
        failed = {p["step"] for p in programs if p.get("ended") != "completed" or p.get("refused")}
        completed = {program["step"] for program in programs} - failed
        for call in events(run / f"{role}.jsonl"):
            if not call.get("response"):
                continue
            if role == "supervisor" and call["step"] not in completed:
                skipped += 1
            else:
                rows.append(_row(call, str(run)))
    return rows, answered, skipped


def _row(call: Mapping[str, Any], run: str) -> dict[str, Any]:
    messages = call.get("messages") or [{"role": "user", "content": call.get("prompt", "")}]
    return {
        "prompt": [{"role": message["role"], "content": message["content"]} for message in messages],
        "completion": [{"role": "assistant", "content": call["response"]}],
        "run": run,
        "step": call["step"],
    }
