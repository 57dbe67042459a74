"""A command of a group whose commands are entry points (`oven-controller traces NAME`)."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass

import typer
import typer.main


@dataclass(frozen=True)
class PluggedCommand:
    """What such an entry point names: a typer command, with a summary for the list of the group's commands."""

    group: str
    name: str
    summary: str
    example: str
    """Arguments that show what it is for; its help ends with them."""
    body: Callable[..., int]
    """Takes the arguments and options, annotated as typer has them, and returns the exit code."""

    def run(self, args: list[str]) -> int:
        """The exit code. What typer raises for wrong arguments is left to the caller, which is a typer command."""
        program = f"oven-controller {self.group} {self.name}"
        app = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})
        app.command(help=self.summary, epilog=f"Example: {program} {self.example}")(self.body)
        return int(typer.main.get_command(app).main(args, prog_name=program, standalone_mode=False) or 0)
