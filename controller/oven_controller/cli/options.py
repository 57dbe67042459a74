"""Arguments and options that several commands share, and functions that print a command's result."""

from __future__ import annotations

import functools
import inspect
import json
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import BaseModel
from pydantic_core import to_jsonable_python

from oven_controller.cli import completion
from oven_core.errors import ConfigError
from oven_core.terminal_text import clean, say
from oven_runs.access.endpoint import Endpoint
from oven_runs.access.run_access import RunAccess, warn

DEFAULT_LIVE_RUN = "the running one"
DEFAULT_RUN = "the running one, else the newest"
FROM_CREDS = "from --creds"
LOCAL = Endpoint()
"""The default endpoint: a run on this machine, unless the environment names another."""

Reason = Annotated[str, typer.Option(help="Reason, recorded in the log.")]
UntilTick = Annotated[
    int | None, typer.Option("--until", metavar="TICK", min=0, help="Stop at the first observation beyond this tick.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Config = Annotated[Path | None, typer.Option(help="A YAML file with settings.")]
Settings = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="One setting; repeatable.")]
Rules = Annotated[
    list[str] | None, typer.Option("--set", metavar="rules.KEY=VALUE", help="Override one rule; repeatable.")
]


def run_argument(default: str) -> Any:
    return typer.Argument(metavar="RUN", help="Run name.", show_default=default, autocompletion=completion.runs)


def run_option(help_: str, default: str | bool = False) -> Any:
    return typer.Option("--run", "-r", metavar="RUN", help=help_, show_default=default, autocompletion=completion.runs)


RunName = Annotated[str | None, run_argument(DEFAULT_RUN)]
LiveRunName = Annotated[str | None, run_argument(DEFAULT_LIVE_RUN)]
RunOption = Annotated[str | None, run_option("Run name.", DEFAULT_RUN)]
LiveRunOption = Annotated[str | None, run_option("Run name.", DEFAULT_LIVE_RUN)]
RunAlias = Annotated[str | None, run_option("The same as RUN.")]
RunsAlias = Annotated[list[str] | None, run_option("The same as RUN; repeatable.")]

Nats = Annotated[
    str | None, typer.Option(metavar="URL", help="Address of a run on another machine.", show_default=FROM_CREDS)
]
Creds = Annotated[Path | None, typer.Option(metavar="FILE", help="Your key for that run, as written by `creds add`.")]
TlsCa = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Certificate authority to trust (PEM).", show_default=FROM_CREDS)
]


def print_result(as_json: bool, content: Any, lines: Iterable[str]) -> None:
    """Print `content` as JSON, or else the lines for people. `content` is a model or JSON values, which may contain
    dataclasses. `lines` may be a generator."""
    if not as_json:
        say(*lines)
    elif isinstance(content, BaseModel):
        print(content.model_dump_json(ensure_ascii=True))
    else:
        print(json.dumps(to_jsonable_python(content)))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table. Never wrap the first column. Remove control characters, because cells may come from elsewhere."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=name == columns[0])
    for row in rows:
        table.add_row(*(Text(clean(cell)) for cell in row))
    Console().print(table)


def remote_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Replace a command's parameter `endpoint` with --nats, --creds and --tls-ca, which select a run elsewhere."""
    signature = inspect.signature(command, eval_str=True)
    own_parameters = [parameter for parameter in signature.parameters.values() if parameter.name != "endpoint"]
    options = [
        inspect.Parameter(name, inspect.Parameter.KEYWORD_ONLY, default=None, annotation=annotation)
        for name, annotation in (("nats", Nats), ("creds", Creds), ("tls_ca", TlsCa))
    ]

    @functools.wraps(command)
    def wrapper(*, nats: str | None, creds: Path | None, tls_ca: Path | None, **arguments: Any) -> Any:
        return command(**arguments, endpoint=Endpoint(nats or "", creds, tls_ca))

    parameters = [parameter.replace(kind=inspect.Parameter.KEYWORD_ONLY) for parameter in own_parameters] + options
    wrapper.__signature__ = signature.replace(parameters=parameters)  # type: ignore[attr-defined]
    wrapper.__annotations__ = {parameter.name: parameter.annotation for parameter in parameters}
    return wrapper


def one_run(argument: str | None, option: str | None) -> str | None:
    """Return the run named by RUN or --run. Raises ConfigError if they name different runs."""
    if argument is not None and option is not None and argument != option:
        raise ConfigError(f"RUN is {argument!r} but --run is {option!r}; name only one run")
    return argument if argument is not None else option


def several_runs(arguments: list[str] | None, options: list[str] | None, *, minimum: int = 1) -> list[str]:
    """Return the runs named by RUN or --run, without duplicates. Raises ConfigError for fewer than `minimum` runs."""
    if arguments and options and set(arguments) != set(options):
        raise ConfigError(f"RUN is {', '.join(arguments)} but --run is {', '.join(options)}; use only one of them")
    runs = list(dict.fromkeys(arguments or options or ()))
    if len(runs) < minimum:
        raise ConfigError("no run is named; `oven-controller runs` lists the runs")
    return runs


def exit_if_incomplete(access: RunAccess) -> None:
    """Warn on stderr and exit with code 3 if the run is down and messages of its learner are missing from the log."""
    if missing := access.missing_messages():
        warn(missing)
        raise typer.Exit(3)
