"""`monitor`: the run in the terminal, drawn by the process of that name."""

from __future__ import annotations

from typing import Annotated

import typer

from oven_controller.cli.options import RunName, SameRun, one_run


def register(app: typer.Typer) -> None:
    app.command()(monitor)


def monitor(
    run: RunName = None,
    run_: SameRun = None,
    light: Annotated[bool, typer.Option("--light", help="A light theme (ctrl+t changes it).")] = False,
) -> None:
    """Watch a run: curves, agents, decisions and their ballots. It only reads; closing it leaves the run as it is.

    Example: oven-controller monitor grpo-1121-0231
    """
    from oven_controller import plugins
    from oven_controller.runs.folder import Home

    folder = Home().find(one_run(run, run_))
    process = plugins.load("processes", "process", "monitor")
    raise typer.Exit(int(process([str(folder.path), *(["--light"] if light else [])])))
