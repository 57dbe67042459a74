"""`import`: a run made of what a training logged, to watch, and to try agents on."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Annotated, Any

import typer

from oven_controller.cli.runs import Json


def register(app: typer.Typer) -> None:
    app.command("import")(import_)


def import_(
    source: Annotated[
        Path,
        typer.Argument(
            help="trainer_state.json or a folder with checkpoints, TensorBoard event files, a W&B offline run, or a "
            "history as CSV or JSONL.",
        ),
    ],
    run: Annotated[str | None, typer.Option("--run", metavar="NAME", help="The run's name.")] = None,
    rename: Annotated[
        list[str] | None,
        typer.Option("--rename", metavar="FROM=TO", help="A metric's name in the source, and what agents know it by."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Make a run of a training's own logs, to look at it and to try agents on it before anything may vote.

    Example: oven-controller import outputs/checkpoint-2000 --run last-month
    """
    from oven_controller.home import Home
    from oven_controller.importing.command import import_run

    made = import_run(source, Home(), run, _renamed(rename or []))
    print(json.dumps(made) if as_json else "\n".join(_told(made)))


def _renamed(pairs: list[str]) -> dict[str, str]:
    from oven_controller.errors import ConfigError

    found = {}
    for pair in pairs:
        name, _, called = pair.partition("=")
        if not name or not called:
            raise ConfigError(f"--rename {pair!r} has no two names; write e.g. --rename critic/rewards/mean=reward")
        found[name] = called
    return found


def _told(made: dict[str, Any]) -> list[str]:
    again = f", resumed {made['incarnations'] - 1} times" if made["incarnations"] > 1 else ""
    out = [
        f"run {made['run']}: {made['observations']} observations of {len(made['metrics'])} metrics, steps "
        f"{made['first_step']} to {made['last_step']}{again}; from {made['source']} ({made['format']})"
    ]
    out += [f"  left out: {count} {what}" for what, count in made["skipped"].items()]
    if made["untimed"]:
        out.append(f"  {made['untimed']} have no time of their own, and stand at the source's last change")
    if not made["actuators"]:
        out.append("  no knob: there is no metric `learning_rate`; --rename NAME=learning_rate if it has another name")
    out.append(f"next: `oven-controller monitor {made['run']}`, `oven-controller backtest lr {made['run']}`")
    return out
