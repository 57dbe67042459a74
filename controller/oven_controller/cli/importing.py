"""`import`: makes a run of another training's logs, to watch it and to try agents on it."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from oven_controller.cli import completion
from oven_controller.cli.options import Json
from oven_core.terminal_text import wrapped

Rename = Annotated[
    list[str] | None,
    typer.Option(
        "--rename",
        metavar="FROM=TO",
        help="A column, and the name that agents know it by: e.g. train/nll=loss; X=step says which has the step.",
    ),
]
Knobs = Annotated[
    list[str] | None,
    typer.Option(
        "--knob",
        metavar="NAME[=VALUE]",
        autocompletion=completion.shipped_knobs,
        help="Announce a knob that the logs do not know, e.g. grad.clip=1, so that agents which move it can answer.",
    ),
]


def import_(
    source: Annotated[
        Path,
        typer.Argument(
            help="trainer_state.json or a folder with checkpoints, TensorBoard event files, a W&B offline run, or a "
            "history as CSV or JSONL.",
        ),
    ],
    run: Annotated[str | None, typer.Option("--run", "-r", metavar="NAME", help="Name of the new run.")] = None,
    rename: Rename = None,
    knob: Knobs = None,
    as_json: Json = False,
) -> None:
    """Import another training run's logs, to view it and to backtest agents on it.

    Example: oven-controller import outputs/checkpoint-2000 --run last-month
    """
    from oven_controller.importing.declared_knobs import declared
    from oven_controller.importing.import_run import import_run
    from oven_runs.home.run_folder import Home

    made = import_run(source, Home(), run, renames(rename or []), declared(knob or []))
    print(json.dumps(made) if as_json else "\n".join(_told(made)))


def renames(pairs: list[str]) -> dict[str, str]:
    """Raises ConfigError for what is not a pair of names."""
    from oven_core.errors import ConfigError

    found = {}
    for pair in pairs:
        name, _, called = pair.rpartition("=")
        if not name or not called:
            raise ConfigError(f"--rename {pair!r} has no two names; write e.g. --rename critic/rewards/mean=reward")
        found[name] = called
    return found


def resumed(incarnations: int) -> str:
    """How often a run was, in words; empty: never."""
    again = incarnations - 1
    times = {1: "once", 2: "twice"}.get(again, f"{again} times")
    return f"resumed {times}" if again > 0 else ""


def source_lines(made: dict[str, Any]) -> list[str]:
    """What was left out of a source, and what would help."""
    out = [f"  left out: {count} {what}" for what, count in made["skipped"].items()]
    if made["untimed"]:
        out.append(f"  {made['untimed']} rows have no timestamp; the file's modification time is used")
    return [line for text in [*out, *made["hints"]] for line in wrapped(text)]


def _told(made: dict[str, Any]) -> list[str]:
    metrics = len(made["metrics"])
    again = ", " + resumed(made["incarnations"]) if made["incarnations"] > 1 else ""
    out = wrapped(
        f"run {made['run']}: {made['observations']} observations of {metrics} metric{'s' * (metrics != 1)}, steps "
        f"{made['first_step']} to {made['last_step']}{again}; from {made['source']} ({made['format']})"
    )
    out += source_lines(made)
    if made["actuators"]:
        out += wrapped(f"  knobs: {', '.join(made['actuators'])}")
    else:
        out += wrapped(
            "  no knob: there is no metric `learning_rate`; --rename NAME=learning_rate if it has another name, or "
            "--knob optimizer.lr_scale"
        )
    out.append("next:")
    return [*out, f"  oven-controller review {made['run']}", f"  oven-controller monitor {made['run']}"]
