"""The `supervise export` command: export the model calls behind answered questions as fine-tuning data."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any, get_args

import click

from oven_controller.cli.options import PATH, argument, json_option, print_result
from oven_core.errors import ConfigError
from oven_core.files import write_atomic
from oven_llm.supervisor.run_logger import Role, read_events


@click.command()
@argument(
    "paths",
    type=PATH,
    nargs=-1,
    required=True,
    metavar="DIR…",
    help="Log folders of `supervise run`, or folders that contain them.",
)
@click.option(
    "--role", type=click.Choice(get_args(Role)), default="supervisor", help="The model whose calls to export."
)
@click.option(
    "--out", type=PATH, metavar="FILE", show_default="ROLE-rows.jsonl in DIR", help="JSON Lines file to write."
)
@json_option
def export(paths: Sequence[Path], role: Role, out: Path | None, as_json: bool) -> int:
    """Write the model calls behind answered questions as rows for TRL's SFTTrainer.

    Example: oven-controller supervise export logs --role supervisor --out rows.jsonl
    """
    runs = run_folders(paths)
    rows, answered, skipped = training_rows(runs, role)
    if not rows:
        raise ConfigError(
            f"there is no call of the {role} to export in {len(runs)} runs; calls are exported only if the run called "
            "FINAL, and supervisor calls only if their program completed"
        )
    file = out or paths[0] / f"{role}-rows.jsonl"
    write_atomic(file, "".join(json.dumps(row, ensure_ascii=False) + "\n" for row in rows))
    line = f"{file}: {len(rows)} rows from {answered} of {len(runs)} runs, {skipped} calls skipped"
    print_result(as_json, {"file": str(file), "rows": len(rows), "answered": answered, "skipped": skipped}, [line])
    return 0


def run_folders(paths: Sequence[Path]) -> list[Path]:
    """Return the log folders among the paths and directly in them. Raises ConfigError for a path without one."""
    folders: list[Path] = []
    for path in paths:
        runs = [path] if (path / "repl.jsonl").is_file() else sorted(log.parent for log in path.glob("*/repl.jsonl"))
        if not runs:
            raise ConfigError(f"{path} contains no log of `supervise run --log-dir` (no repl.jsonl)")
        folders += runs
    return list(dict.fromkeys(folders))


def training_rows(runs: Sequence[Path], role: Role) -> tuple[list[dict[str, Any]], int, int]:
    """Return one row per call of the answered runs, the number of answered runs, and the number of skipped calls.

    Calls without a response have no row. The supervisor's calls without a completed program are skipped and counted. A
    row has `prompt` and `completion` as conversations for TRL's SFTTrainer. Raises ConfigError for an unreadable log.
    """
    rows: list[dict[str, Any]] = []
    answered = skipped = 0
    for run in runs:
        programs = list(read_events(run / "repl.jsonl"))
        if not any(program.get("answer") for program in programs):
            continue
        answered += 1
        failures = [program for program in programs if program.get("ended") != "completed" or program.get("refused")]
        failed_steps = {program["step"] for program in failures}
        completed_steps = {program["step"] for program in programs} - failed_steps
        for call in read_events(run / f"{role}.jsonl"):
            if not call.get("response"):
                continue
            if role == "supervisor" and call["step"] not in completed_steps:
                skipped += 1
            else:
                rows.append(_training_row(call, str(run)))
    return rows, answered, skipped


def _training_row(call: Mapping[str, Any], run: str) -> dict[str, Any]:
    messages = call.get("messages") or [{"role": "user", "content": call.get("prompt", "")}]
    return {
        "prompt": [{"role": message["role"], "content": message["content"]} for message in messages],
        "completion": [{"role": "assistant", "content": call["response"]}],
        "run": run,
        "step": call["step"],
    }
