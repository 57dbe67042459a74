"""Arguments and options that several commands share."""

from __future__ import annotations

import functools
import inspect
from collections.abc import Callable
from pathlib import Path
from typing import Annotated, Any

import typer

from oven_controller.cli import completion
from oven_core.errors import ConfigError
from oven_runs.access.endpoint import Endpoint
from oven_runs.access.run_access import RunAccess, warn

RUNNING = "the running one"
NEWEST = "the running one, else the newest"
HERE = Endpoint()
"""The run is on this machine, unless the environment names another."""

Reason = Annotated[str, typer.Option(help="Reason, recorded in the log.")]
UntilTick = Annotated[
    int | None, typer.Option("--until", metavar="TICK", min=0, help="Stop at the first observation beyond this tick.")
]
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
    typer.Option(metavar="URL", help="Address of a run on another machine.", show_default="that of --creds"),
]
Creds = Annotated[
    Path | None,
    typer.Option(
        metavar="FILE", help="Your key for that run, a file that `creds add NAME --operator` or `--read-only` wrote."
    ),
]
TlsCa = Annotated[
    Path | None,
    typer.Option(
        "--tls-ca", metavar="FILE", help="Certificate authority to trust (PEM).", show_default="that of --creds"
    ),
]


def from_anywhere(command: Callable[..., Any]) -> Callable[..., Any]:
    """Give a command the options --nats, --creds and --tls-ca instead of its parameter `endpoint`, the Endpoint of a
    run on another machine."""
    signature = inspect.signature(command, eval_str=True)
    own = [parameter for parameter in signature.parameters.values() if parameter.name != "endpoint"]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=kind)
        for name, kind in (("nats", Nats), ("creds", Creds), ("tls_ca", TlsCa))
    ]

    @functools.wraps(command)
    def called(*, nats: str | None, creds: Path | None, tls_ca: Path | None, **others: Any) -> Any:
        return command(**others, endpoint=Endpoint(nats or "", creds, tls_ca))

    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own] + options
    called.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    called.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return called


def one_run(argument: str | None, option: str | None) -> str | None:
    """The run that RUN or --run names. Raises ConfigError if they name different runs."""
    if argument is not None and option is not None and argument != option:
        raise ConfigError(f"RUN is {argument!r} and --run is {option!r}: name one run only")
    return argument if argument is not None else option


def several_runs(arguments: list[str] | None, options: list[str] | None, *, least: int = 1) -> list[str]:
    """The runs that RUN or --run name, each once. Raises ConfigError for fewer than `least` runs, and if RUN and --run
    name different runs."""
    if arguments and options and set(arguments) != set(options):
        both = f"{', '.join(map(repr, arguments))} and --run {', '.join(map(repr, options))}"
        raise ConfigError(f"RUN and --run name different runs ({both}): use only one of them")
    runs = list(dict.fromkeys(arguments or options or ()))
    if len(runs) < least:
        raise ConfigError("no run is named; `oven-controller runs` lists them")
    return runs


def exit_if_incomplete(access: RunAccess) -> None:
    """Warn on stderr, and end the command with exit code 3, if the run is down and its log lacks messages of its
    learner."""
    if missing := access.missing():
        warn(missing)
        raise typer.Exit(3)
