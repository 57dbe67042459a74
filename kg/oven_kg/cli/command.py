"""A command of `oven-controller kg`, and the options that several of them share."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, TypeVar

import typer
import typer.main
from pydantic import BaseModel, ValidationError

from oven_controller.errors import ConfigError

Asked = TypeVar("Asked", bound=BaseModel)

Json = Annotated[bool, typer.Option("--json", help="print one JSON object")]
GraphFile = Annotated[
    Path | None,
    typer.Option("--graph", metavar="PATH", help="a graph's file, or a large one's folder, for the built-in one"),
]


@dataclass(frozen=True)
class Command:
    """What an entry point of oven.kg is: a typer command, with a summary for the list of commands."""

    name: str
    summary: str
    example: str
    """Arguments that show what it is for; its help ends with them."""
    body: Callable[..., int]
    """Takes the arguments and options, and returns the exit code."""

    def run(self, args: list[str]) -> int:
        """The exit code. What typer raises for wrong arguments is left to the caller, which is a typer command."""
        program = f"oven-controller kg {self.name}"
        app = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})
        app.command(help=self.summary, epilog=f"example: {program} {self.example}")(self.body)
        return int(typer.main.get_command(app).main(args, prog_name=program, standalone_mode=False))


def validated(model: type[Asked], values: Mapping[str, object]) -> Asked:
    """A request of these values. Raises ConfigError that names the first wrong one."""
    try:
        return model.model_validate(values)
    except ValidationError as error:
        first = error.errors(include_url=False, include_context=False)[0]
        raise ConfigError(f"{'.'.join(map(str, first['loc']))} is {first['input']!r}: {first['msg']}") from None
