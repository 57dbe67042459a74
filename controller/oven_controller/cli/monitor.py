"""`monitor`: the run in the terminal, drawn by the process of that name."""

from __future__ import annotations

from typing import Annotated

import typer

from oven_controller.cli.options import HERE, RunName, SameRun, from_anywhere, one_run
from oven_controller.runs.endpoint import Endpoint


def register(app: typer.Typer) -> None:
    app.command()(from_anywhere(monitor))


def monitor(
    run: RunName = None,
    run_: SameRun = None,
    light: Annotated[bool, typer.Option("--light", help="A light theme (ctrl+t changes it).")] = False,
    at: Endpoint = HERE,
) -> None:
    """Watch a run: curves, agents, decisions and their ballots. It only reads; closing it leaves the run as it is.

    Example: oven-controller monitor grpo-1121-0231
    """
    from oven_controller import plugins
    from oven_controller.runs.folder import Home

    name = one_run(run, run_)
    if at.completed().named:
        where = [*at.arguments(), *(["--run", name] if name else [])]
    else:
        where = [str(Home().find(name).path)]
    process = plugins.load("processes", "process", "monitor")
    raise typer.Exit(int(process([*where, *(["--light"] if light else [])])))
