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
    light: Annotated[
        bool, typer.Option("--light", envvar="OVEN_LIGHT", help="A light theme (ctrl+t changes it).")
    ] = False,
    colour_blind: Annotated[
        bool,
        typer.Option(
            "--colour-blind", envvar="OVEN_COLOUR_BLIND", help="Colours that hold apart for the colour-blind, too."
        ),
    ] = False,
    ascii_only: Annotated[
        bool | None,
        typer.Option(
            "--ascii/--no-ascii",
            envvar="OVEN_ASCII",
            help="No braille, frames or signs beyond ASCII [default: as the terminal's locale says].",
            show_default=False,
        ),
    ] = None,
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
    looks = [*(["--light"] if light else []), *(["--colour-blind"] if colour_blind else [])]
    looks += [] if ascii_only is None else ["--ascii" if ascii_only else "--no-ascii"]
    raise typer.Exit(int(process([*where, *looks])))
