"""Shared arguments and options of the commands."""

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

RUNNING = "the running one"
NEWEST = "the running one, else the newest"
THAT_OF_CREDS = "that of --creds"
HERE = Endpoint()
"""The default endpoint: a run on this machine, unless the environment names another."""

Reason = Annotated[str, typer.Option(help="Reason, recorded in the log.")]
UntilTick = Annotated[
    int | None, typer.Option("--until", metavar="TICK", min=0, help="Stop at the first observation beyond this tick.")
]
Json = Annotated[bool, typer.Option("--json", help="Print JSON.")]
Config = Annotated[Path | None, typer.Option(help="A YAML file with settings.")]
Sets = Annotated[list[str] | None, typer.Option("--set", metavar="A.B=C", help="One setting; repeatable.")]
Rules = Annotated[
    list[str] | None, typer.Option("--set", metavar="rules.KEY=VALUE", help="Decide with this rule; repeatable.")
]


def run_argument(default: str) -> Any:
    return typer.Argument(metavar="RUN", help="Run name.", show_default=default, autocompletion=completion.runs)


def run_option(help_: str, default: str | bool = False) -> Any:
    named: Any = {"metavar": "RUN", "autocompletion": completion.runs}
    return typer.Option("--run", "-r", help=help_, show_default=default, **named)


RunName = Annotated[str | None, run_argument(NEWEST)]
LiveRunName = Annotated[str | None, run_argument(RUNNING)]
RunOption = Annotated[str | None, run_option("Run name.", NEWEST)]
LiveRunOption = Annotated[str | None, run_option("Run name.", RUNNING)]
SameRun = Annotated[str | None, run_option("The same as RUN.")]
SameRuns = Annotated[list[str] | None, run_option("The same as RUN; repeatable.")]

Nats = Annotated[
    str | None, typer.Option(metavar="URL", help="Address of a run on another machine.", show_default=THAT_OF_CREDS)
]
Creds = Annotated[
    Path | None, typer.Option(metavar="FILE", help="Your key for that run, a file that `creds add` wrote.")
]
TlsCa = Annotated[
    Path | None,
    typer.Option(metavar="FILE", help="Certificate authority to trust (PEM).", show_default=THAT_OF_CREDS),
]


def print_result(as_json: bool, content: Any, lines: Iterable[str]) -> None:
    """Print a model or JSON values, which may contain dataclasses, or else the lines for people, which may be a
    generator."""
    if not as_json:
        say(*lines)
    elif isinstance(content, BaseModel):
        print(content.model_dump_json(ensure_ascii=True))
    else:
        print(json.dumps(to_jsonable_python(content)))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table of texts, which may come from other machines. The first column is never folded."""
    from rich.console import Console
    from rich.table import Table
    from rich.text import Text

    table = Table(box=None, pad_edge=False)
    for name in columns:
        table.add_column(name, overflow="fold", no_wrap=name == columns[0])
    for row in rows:
        table.add_row(*(Text(clean(cell)) for cell in row))
    Console().print(table)


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
    """Return the run named by RUN or --run. Raises ConfigError if they name different runs."""
    if argument is not None and option is not None and argument != option:
        raise ConfigError(f"RUN is {argument!r} and --run is {option!r}: name one run only")
    return argument if argument is not None else option


def several_runs(arguments: list[str] | None, options: list[str] | None, *, least: int = 1) -> list[str]:
    """Return the runs named by RUN or --run, without duplicates. Raises ConfigError for fewer than `least` runs."""
    if arguments and options and set(arguments) != set(options):
        raise ConfigError(f"RUN is {', '.join(arguments)} and --run is {', '.join(options)}: use only one of them")
    runs = list(dict.fromkeys(arguments or options or ()))
    if len(runs) < least:
        raise ConfigError("no run is named; `oven-controller runs` lists them")
    return runs


def exit_if_incomplete(access: RunAccess) -> None:
    """Warn on stderr and exit with code 3 if the run is down and its log lacks messages of its learner."""
    if missing := access.missing_messages():
        warn(missing)
        raise typer.Exit(3)
