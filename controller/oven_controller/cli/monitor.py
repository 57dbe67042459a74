"""`monitor`: the run in the terminal, drawn by the process of that name."""

from __future__ import annotations

from typing import TYPE_CHECKING, Annotated

import typer

from oven_controller.cli import completion
from oven_controller.cli.options import HERE, SameRuns, from_anywhere, several_runs
from oven_runs.access.endpoint import Endpoint

if TYPE_CHECKING:
    from oven_runs.home.run_folder import Home

MOST = 4
"""Runs over each other."""


@from_anywhere
def monitor(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="Run name; two to four are shown over each other.",
            show_default="the list of runs, or the only one",
            autocompletion=completion.runs,
        ),
    ] = None,
    runs_: SameRuns = None,
    play: Annotated[bool, typer.Option("--play", help="Play the run from its log.")] = False,
    speed: Annotated[float, typer.Option(min=0.25, help="With --play: times the run's own pace.")] = 1.0,
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
    control: Annotated[
        bool, typer.Option("--control", help="Act on the run, with the operator's key: approve, set, hold …")
    ] = False,
    web: Annotated[
        bool, typer.Option("--web", help="Show it in a browser of this machine, behind a one-time address.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="With --web.", show_default="a free one")] = 0,
    at: Endpoint = HERE,
) -> None:
    """Watch a run: curves, agents, decisions and their ballots. Without --control it only reads; closing it leaves the
    run as it is.

    Without RUN it lists the runs, where there are several; with two to four it shows them over each other.

    Example: oven-controller monitor grpo-1121-0231

    Example: oven-controller monitor grpo-1121-0231 --control

    Example: oven-controller monitor grpo-1121-0231 --play --speed 8
    """
    from oven_controller.stack.process_table import process_function
    from oven_core.errors import ConfigError
    from oven_runs.home.run_folder import Home

    names = several_runs(runs, runs_, least=0)
    if len(names) > MOST or (play and len(names) > 1):
        most = "only one can be played" if play else f"at most {MOST} are shown over each other"
        raise ConfigError(f"{len(names)} runs are named, and {most}: name fewer")
    if at.completed().named:
        if len(names) > 1:
            raise ConfigError(f"an address and {len(names)} runs are named, and it is of one: name one")
        where = [*at.arguments(), *(["--run", names[0]] if names else [])]
    else:
        home = Home()
        where = [str(home.find(name).path) for name in names] or _all_runs(home)
    where += ["--play"] if play else []
    where += ["--speed", str(speed)] if speed != 1 else []
    process = process_function("monitor")
    looks = [*(["--light"] if light else []), *(["--colour-blind"] if colour_blind else [])]
    looks += [] if ascii_only is None else ["--ascii" if ascii_only else "--no-ascii"]
    looks += ["--control"] if control else []
    looks += ["--web", "--port", str(port)] if web else []
    raise typer.Exit(int(process([*where, *looks])))


def _all_runs(home: Home) -> list[str]:
    """The only run, or the list of all. Raises ConfigError where there is none."""
    runs = home.runs()
    return ["--home", str(home.path)] if len(runs) > 1 else [str(home.find(None).path)]
