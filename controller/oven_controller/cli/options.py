"""Arguments and options that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from oven_controller.cli import completion
from oven_runs.access.endpoint import Endpoint

if TYPE_CHECKING:
    from oven_runs.access.run_access import RunAccess

RUNNING = "the running one"
NEWEST = "the running one, else the newest"
HERE = Endpoint()
"""The run is on this machine, unless the environment says otherwise."""

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


Nats = Annotated[
    str | None,
    typer.Option(metavar="URL", help="Where a run on another machine is reached.", show_default="as --creds says"),
]
Creds = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Your key for it, as `creds add NAME --operator` or `--read-only` wrote it."),
]
TlsCa = Annotated[
    Path | None,
    typer.Option("--tls-ca", metavar="FILE", help="Authority to trust, PEM.", show_default="as --creds says"),
]


def from_anywhere(command: Callable[..., Any]) -> Callable[..., Any]:
    """`command` as it is shown and called on the command line: with --nats, --creds and --tls-ca in the place of its
    parameter `at`, the Endpoint of a run on another machine."""
    given = inspect.signature(command, eval_str=True)
    kept = [one for one in given.parameters.values() if one.name != "at"]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in (("nats", Nats), ("creds", Creds), ("tls_ca", TlsCa))
    ]

    @functools.wraps(command)
    def called(*, nats: str | None, creds: Path | None, tls_ca: Path | None, **others: Any) -> Any:
        return command(**others, at=Endpoint(nats or "", creds, tls_ca))

    shown = [one.replace(kind=inspect.Parameter.KEYWORD_ONLY) for one in kept] + options
    called.__signature__ = given.replace(parameters=shown)  # type: ignore[attr-defined]
    called.__annotations__ = {one.name: one.annotation for one in shown}
    return called


def one_run(argument: str | None, option: str | None) -> str | None:
    """The run that was named as RUN or by --run. Raises ConfigError where both name one, and not the same."""
    if argument is not None and option is not None and argument != option:
        from oven_core.errors import ConfigError

        raise ConfigError(f"two runs are named, {argument!r} and --run {option!r}, and one is taken: leave one out")
    return argument if argument is not None else option


def several_runs(arguments: list[str] | None, options: list[str] | None, *, least: int = 1) -> list[str]:
    """The runs that were named as RUN or by --run, each once. Raises ConfigError where fewer than `least` are named,
    and where both name some, and not the same."""
    from oven_core.errors import ConfigError

    if arguments and options and set(arguments) != set(options):
        both = f"{', '.join(map(repr, arguments))} and --run {', '.join(map(repr, options))}"
        raise ConfigError(f"runs are named twice, {both}: name them one way or the other")
    found = list(dict.fromkeys(arguments or options or ()))
    if len(found) < least:
        raise ConfigError("no run is named; `oven-controller runs` lists them")
    return found


def exit_if_incomplete(access: RunAccess) -> None:
    """Warn on stderr, and end the command with exit code 3, if the run is down and its log lacks messages of its
    learner."""
    from oven_runs.access.run_access import warn

    if missing := access.missing():
        warn(missing)
        raise typer.Exit(3)
