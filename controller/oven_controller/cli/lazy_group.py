"""Command groups that import a command's module only when that command is used."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any, Final

import typer
import typer.main
from typer.core import TyperCommand, TyperGroup

from oven_core.errors import UnknownNameError
from oven_core.plugins import import_object

HELP_OPTIONS: Final = {"help_option_names": ["-h", "--help"]}


@dataclass(frozen=True)
class Command:
    """A command, defined by the import path of its function."""

    target: str
    """`module:function`, or `module:app` for a Typer app. A function's parameters are the arguments and options, with
    Typer's annotations, and its docstring is the help. It returns the exit code, or None for 0."""
    summary: str
    """Description in the list of commands."""


@dataclass(frozen=True)
class Group:
    """A group of commands inside another group."""

    summary: str
    example: str
    """Arguments of an example call, for the help."""
    commands: Mapping[str, Command | Group]


class LazyGroup(TyperGroup):
    """A command group built from a table. Help and name completion read only the table and import no command."""

    def __init__(
        self,
        *,
        table: Mapping[str, Command | Group],
        headings: Mapping[str, str] | None = None,
        title: str = "",
        **settings: Any,
    ) -> None:
        """`headings` maps commands to their headings in the help. `title` is the group's name for errors and examples,
        or empty for the program itself."""
        super().__init__(**settings)
        self.table = table
        self._headings = headings or {}
        self._title = title

    def list_commands(self, ctx: Any) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Return a placeholder with the name and summary, which is enough for lists. `load` builds the real command."""
        if cmd_name not in self.table:
            return None
        return TyperCommand(
            cmd_name, help=self.table[cmd_name].summary, rich_help_panel=self._headings.get(cmd_name), callback=None
        )

    def resolve_command(self, ctx: Any, args: list[str]) -> tuple[str | None, Any, list[str]]:
        """Return the command that `args` start with. Raises UnknownNameError."""
        name = args[0]
        if name in self.table:
            return name, self.load(name), args[1:]
        if ctx.resilient_parsing:  # for shell completion, which ignores errors
            return None, None, args[1:]
        raise UnknownNameError(f"command of {self._title}" if self._title else "command", name, self.table)

    def load(self, name: str) -> Any:
        """Import and build one command or group. Raises ConfigError if a package that it needs is not installed."""
        entry = self.table[name]
        title = f"{self._title} {name}".strip()
        if isinstance(entry, Group):
            return LazyGroup(
                table=entry.commands,
                title=title,
                name=name,
                help=f"{entry.summary}\n\nExample: oven-controller {title} {entry.example}",
                no_args_is_help=True,
                context_settings=HELP_OPTIONS,
            )
        target = import_object("command", title, entry.target)
        command = typer.main.get_command(target if isinstance(target, typer.Typer) else single_command(target))
        command.name = name
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run the command. The return value of its function becomes the exit code."""
        code = super().invoke(ctx)
        if isinstance(code, int) and code:
            raise typer.Exit(code)
        return code


def single_command(
    function: Callable[..., Any], *, command_class: type[TyperCommand] | None = None, **context_settings: Any
) -> typer.Typer:
    """Return a Typer app with one command. The context settings are added to HELP_OPTIONS."""
    app = typer.Typer(add_completion=False, pretty_exceptions_enable=False)
    app.command(cls=command_class, context_settings=HELP_OPTIONS | context_settings)(function)
    return app
