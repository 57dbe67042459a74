"""The `monitor` command: show runs in the terminal."""

from __future__ import annotations

import click

from oven_controller.cli.options import remote_options, runs_argument
from oven_core.errors import ConfigError
from oven_runs.access.endpoint import Endpoint
from oven_runs.home.run_folder import Home

MAX_RUNS = 4
"""Maximum number of runs in one overlay."""


@click.command()
@runs_argument("Run name; two to four runs are overlaid.  [default: the list of runs, or the only one]", minimum=0)
@click.option("--play", is_flag=True, help="Replay the run from its log.")
@click.option(
    "--speed", type=click.FloatRange(min=0.25), default=1.0, help="With --play: speed relative to the run's own pace."
)
@click.option(
    "--light", is_flag=True, envvar="OVEN_LIGHT", show_envvar=True, help="Use a light theme (ctrl+t changes it)."
)
@click.option(
    "--colour-blind",
    is_flag=True,
    envvar="OVEN_COLOUR_BLIND",
    show_envvar=True,
    help="Use colours that colour-blind people can tell apart.",
)
@click.option(
    "--ascii/--no-ascii",
    "ascii_only",
    default=None,
    envvar="OVEN_ASCII",
    show_envvar=True,
    show_default="by the terminal's locale",
    help="Use only ASCII characters.",
)
@click.option("--control", is_flag=True, help="Allow actions with the operator's key: approve, set, hold …")
@click.option("--web", is_flag=True, help="Show the monitor in a browser on this machine, at a one-time address.")
@click.option("--port", type=click.IntRange(0, 65535), default=0, show_default="a free one", help="Port for --web.")
@remote_options
def monitor(
    runs: list[str],
    play: bool,
    speed: float,
    light: bool,
    colour_blind: bool,
    ascii_only: bool | None,
    control: bool,
    web: bool,
    port: int,
    endpoint: Endpoint,
) -> int:
    """Watch a run: curves, agents, decisions and their ballots. Without --control the monitor only reads. Closing it
    does not affect the run.

    Without RUN it lists the runs if there are several. With two to four runs it overlays them.

    Example: oven-controller monitor grpo-1121-0231

    Example: oven-controller monitor grpo-1121-0231 --control

    Example: oven-controller monitor grpo-1121-0231 --play --speed 8
    """
    from oven_controller.stack.process_table import process_function

    if len(runs) > MAX_RUNS or (play and len(runs) > 1):
        limit = "only one can be played" if play else f"at most {MAX_RUNS} can be overlaid"
        raise ConfigError(f"{len(runs)} runs are named, but {limit}; name fewer runs")
    if endpoint.with_environment().is_remote:
        if len(runs) > 1:
            raise ConfigError(f"a server address is for one run, but {len(runs)} are named; name only one")
        arguments = [*endpoint.arguments(), *(["--run", runs[0]] if runs else [])]
    else:
        home = Home()
        arguments = [str(home.find(name).path) for name in runs] or _all_runs_arguments(home)
    flags = {"--play": play, "--light": light, "--colour-blind": colour_blind, "--control": control}
    arguments += [flag for flag, is_set in flags.items() if is_set]
    arguments += ["--speed", str(speed)] if speed != 1 else []
    if ascii_only is not None:
        arguments.append("--ascii" if ascii_only else "--no-ascii")
    arguments += ["--web", "--port", str(port)] if web else []
    return process_function("monitor")(arguments)


def _all_runs_arguments(home: Home) -> list[str]:
    """Return the arguments for the only run, or for the list of all runs. Raises ConfigError if there is no run."""
    runs = home.runs()
    return ["--home", str(home.path)] if len(runs) > 1 else [str(home.find(None).path)]
