"""The `monitor` command: show runs in the terminal."""

from __future__ import annotations

from typing import Annotated

import typer

from oven_controller.cli import completion
from oven_controller.cli.options import LOCAL, RunsAlias, remote_options, several_runs
from oven_core.errors import ConfigError
from oven_runs.access.endpoint import Endpoint
from oven_runs.home.run_folder import Home

MAX_RUNS = 4
"""Maximum number of runs in one overlay."""


@remote_options
def monitor(
    runs: Annotated[
        list[str] | None,
        typer.Argument(
            metavar="RUN",
            help="Run name; two to four runs are overlaid.",
            show_default="the list of runs, or the only one",
            autocompletion=completion.runs,
        ),
    ] = None,
    runs_: RunsAlias = None,
    play: Annotated[bool, typer.Option("--play", help="Replay the run from its log.")] = False,
    speed: Annotated[float, typer.Option(min=0.25, help="With --play: speed relative to the run's own pace.")] = 1.0,
    light: Annotated[
        bool, typer.Option("--light", envvar="OVEN_LIGHT", help="Use a light theme (ctrl+t changes it).")
    ] = False,
    colour_blind: Annotated[
        bool,
        typer.Option(
            "--colour-blind", envvar="OVEN_COLOUR_BLIND", help="Use colours that colour-blind people can tell apart."
        ),
    ] = False,
    ascii_only: Annotated[
        bool | None,
        typer.Option(
            "--ascii/--no-ascii",
            envvar="OVEN_ASCII",
            help="Use only ASCII characters.",
            show_default="by the terminal's locale",
        ),
    ] = None,
    control: Annotated[
        bool, typer.Option("--control", help="Allow actions with the operator's key: approve, set, hold …")
    ] = False,
    web: Annotated[
        bool, typer.Option("--web", help="Show the monitor in a browser on this machine, at a one-time address.")
    ] = False,
    port: Annotated[int, typer.Option(min=0, max=65535, help="Port for --web.", show_default="a free one")] = 0,
    endpoint: Endpoint = LOCAL,
) -> None:
    """Watch a run: curves, agents, decisions and their ballots. Without --control the monitor only reads. Closing it
    does not affect the run.

    Without RUN it lists the runs if there are several. With two to four runs it overlays them.

    Example: oven-controller monitor grpo-1121-0231

    Example: oven-controller monitor grpo-1121-0231 --control

    Example: oven-controller monitor grpo-1121-0231 --play --speed 8
    """
    from oven_controller.stack.process_table import process_function

    names = several_runs(runs, runs_, minimum=0)
    if len(names) > MAX_RUNS or (play and len(names) > 1):
        limit = "only one can be played" if play else f"at most {MAX_RUNS} can be overlaid"
        raise ConfigError(f"{len(names)} runs are named, but {limit}; name fewer runs")
    if endpoint.with_environment().is_remote:
        if len(names) > 1:
            raise ConfigError(f"a server address is for one run, but {len(names)} are named; name only one")
        arguments = [*endpoint.arguments(), *(["--run", names[0]] if names else [])]
    else:
        home = Home()
        arguments = [str(home.find(name).path) for name in names] or _all_runs_arguments(home)
    flags = {"--play": play, "--light": light, "--colour-blind": colour_blind, "--control": control}
    arguments += [flag for flag, is_set in flags.items() if is_set]
    arguments += ["--speed", str(speed)] if speed != 1 else []
    if ascii_only is not None:
        arguments.append("--ascii" if ascii_only else "--no-ascii")
    arguments += ["--web", "--port", str(port)] if web else []
    run_monitor = process_function("monitor")
    raise typer.Exit(run_monitor(arguments))


def _all_runs_arguments(home: Home) -> list[str]:
    """Return the arguments for the only run, or for the list of all runs. Raises ConfigError if there is no run."""
    runs = home.runs()
    return ["--home", str(home.path)] if len(runs) > 1 else [str(home.find(None).path)]
