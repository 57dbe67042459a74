"""Arguments and options that several commands share."""

from __future__ import annotations

from typing import Annotated

import typer

from oven_controller.cli import completion

RUNNING = "the running one"
NEWEST = "the running one, else the newest"

Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
RunName = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="Run name.", show_default=NEWEST, autocompletion=completion.runs),
]
LiveRunName = Annotated[
    str | None,
    typer.Argument(metavar="RUN", help="Run name.", show_default=RUNNING, autocompletion=completion.runs),
]
SameRun = Annotated[
    str | None,
    typer.Option("--run", "-r", metavar="RUN", help="The same as RUN.", autocompletion=completion.runs),
]
RunOption = Annotated[
    str | None,
    typer.Option("--run", "-r", metavar="RUN", help="Run name.", show_default=NEWEST, autocompletion=completion.runs),
]
LiveRunOption = Annotated[
    str | None,
    typer.Option("--run", "-r", metavar="RUN", help="Run name.", show_default=RUNNING, autocompletion=completion.runs),
]
SameRuns = Annotated[
    list[str] | None,
    typer.Option("--run", "-r", metavar="RUN", help="The same as RUN; repeatable.", autocompletion=completion.runs),
]


def one_run(argument: str | None, option: str | None) -> str | None:
    """The run that was named as RUN or by --run. Raises ConfigError where both name one, and not the same."""
    if argument is not None and option is not None and argument != option:
        from oven_controller.errors import ConfigError

        raise ConfigError(f"two runs are named, {argument!r} and --run {option!r}, and one is taken: leave one out")
    return argument if argument is not None else option


def several_runs(arguments: list[str] | None, options: list[str] | None) -> list[str]:
    """The runs that were named as RUN or by --run, each once. Raises ConfigError where none is named, and where both
    name some, and not the same."""
    from oven_controller.errors import ConfigError

    if arguments and options and set(arguments) != set(options):
        both = f"{', '.join(map(repr, arguments))} and --run {', '.join(map(repr, options))}"
        raise ConfigError(f"runs are named twice, {both}: name them one way or the other")
    found = list(dict.fromkeys(arguments or options or ()))
    if not found:
        raise ConfigError("no run is named; `oven-controller runs` lists them")
    return found
