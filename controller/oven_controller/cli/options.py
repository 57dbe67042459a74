"""Arguments and options that several commands share, and functions that print a command's result."""

from __future__ import annotations

import functools
import json
import shutil
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Any

import click

from oven_controller.cli import completion
from oven_core.errors import ConfigError
from oven_core.terminal_text import say, table_lines, warn
from oven_runs.access.endpoint import Endpoint

if TYPE_CHECKING:
    from oven_runs.access.run_access import RunAccess

Decorator = Callable[[Callable[..., Any]], Callable[..., Any]]

DEFAULT_LIVE_RUN = "the running one"
DEFAULT_RUN = "the running one, else the newest"
FROM_CREDS = "from --creds"
PATH = click.Path(path_type=Path)

json_option = click.option("--json", "as_json", is_flag=True, help="Print JSON.")
reason_option = click.option("--reason", default="", show_default=False, help="Reason, recorded in the log.")
config_option = click.option("--config", type=PATH, help="A YAML file with settings.")
settings_option = click.option("--set", "overrides", multiple=True, metavar="A.B=C", help="One setting; repeatable.")
rules_option = click.option(
    "--set", "overrides", multiple=True, metavar="rules.KEY=VALUE", help="Override one rule; repeatable."
)
until_option = click.option(
    "--until", type=click.IntRange(min=0), metavar="TICK", help="Stop at the first observation beyond this tick."
)


class Argument(click.Argument):
    """An argument with a help text, which click itself has only since 8.5."""

    def __init__(self, *declarations: Any, help: str = "", **attributes: Any) -> None:
        super().__init__(*declarations, **attributes)
        self.help = help

    def get_help_record(self, ctx: click.Context) -> tuple[str, str]:
        return " ".join(self.get_usage_pieces(ctx)), self.help or ""


argument = functools.partial(click.argument, cls=Argument)


def run_option(help_: str, name: str = "run", **attributes: Any) -> Decorator:
    return click.option("--run", "-r", name, metavar="RUN", help=help_, shell_complete=completion.runs, **attributes)


def run_argument(default: str = "", help_: str = "Run name.") -> Decorator:
    """Add the argument RUN and the option --run with the same meaning. The command gets the name as `run`, or None.
    Two different names are a ConfigError. `default` describes the run without a name."""
    text = f"{help_}  [default: {default}]" if default else help_

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @argument("run", required=False, shell_complete=completion.runs, help=text)
        @run_option("The same as RUN.", "run_")
        @functools.wraps(command)
        def wrapper(*, run: str | None, run_: str | None, **options: Any) -> Any:
            if run is not None and run_ is not None and run != run_:
                raise ConfigError(f"RUN is {run!r} but --run is {run_!r}; name only one run")
            return command(run=run if run is not None else run_, **options)

        return wrapper

    return decorate


def runs_argument(help_: str, *, minimum: int = 1, shell_complete: Any = completion.runs) -> Decorator:
    """Add the argument RUN for several runs, and the option --run with the same meaning. The command gets the names
    without duplicates as `runs`. Different names, or fewer than `minimum` of them, are a ConfigError."""

    def decorate(command: Callable[..., Any]) -> Callable[..., Any]:
        @argument("runs", nargs=-1, metavar="[RUN]...", shell_complete=shell_complete, help=help_)
        @run_option("The same as RUN; repeatable.", "runs_", multiple=True)
        @functools.wraps(command)
        def wrapper(*, runs: Sequence[str], runs_: Sequence[str], **options: Any) -> Any:
            if runs and runs_ and set(runs) != set(runs_):
                raise ConfigError(f"RUN is {', '.join(runs)} but --run is {', '.join(runs_)}; use only one of them")
            names = list(dict.fromkeys(runs or runs_))
            if len(names) < minimum:
                raise ConfigError("no run is named; `oven-controller runs` lists the runs")
            return command(runs=names, **options)

        return wrapper

    return decorate


def remote_options(command: Callable[..., Any]) -> Callable[..., Any]:
    """Add --nats, --creds and --tls-ca, which select a run elsewhere. The command gets them as `endpoint`."""

    @click.option("--nats", metavar="URL", show_default=FROM_CREDS, help="Address of a run on another machine.")
    @click.option("--creds", type=PATH, metavar="FILE", help="Your key for that run, as written by `creds add`.")
    @click.option(
        "--tls-ca", type=PATH, metavar="FILE", show_default=FROM_CREDS, help="Certificate authority to trust (PEM)."
    )
    @functools.wraps(command)
    def wrapper(*, nats: str | None, creds: Path | None, tls_ca: Path | None, **options: Any) -> Any:
        return command(**options, endpoint=Endpoint(nats or "", creds, tls_ca))

    return wrapper


def print_result(as_json: bool, content: Any, lines: Iterable[str]) -> None:
    """Print `content` as JSON, or else the lines for people. `content` is a model or JSON values, which may contain
    dataclasses. `lines` may be a generator."""
    if not as_json:
        say(*lines)
        return
    from pydantic import BaseModel
    from pydantic_core import to_jsonable_python

    if isinstance(content, BaseModel):
        print(content.model_dump_json(ensure_ascii=True))
    else:
        print(json.dumps(to_jsonable_python(content)))


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """Print a table that fits the terminal, or 80 columns without one."""
    print(*table_lines(columns, rows, shutil.get_terminal_size().columns), sep="\n")


def exit_if_incomplete(access: RunAccess) -> None:
    """Warn on stderr and exit with code 3 if the run is down and messages of its learner are missing from the log."""
    if missing := access.missing_messages():
        warn(missing)
        raise click.exceptions.Exit(3)
