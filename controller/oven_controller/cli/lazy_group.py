"""Command groups that import a command's module only when that command is used."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import click

from oven_core.errors import UnknownNameError
from oven_core.plugins import import_object


@dataclass(frozen=True)
class Command:
    """A command, defined by its import path."""

    target: str
    """`module:name` of a click command. Its function returns the exit code, or None for 0."""
    summary: str
    """Description in the list of commands."""


@dataclass(frozen=True)
class Group:
    """A group of commands inside another group."""

    summary: str
    example: str
    """Arguments of an example call, for the help."""
    commands: Mapping[str, Command | Group]


class LazyGroup(click.Group):
    """A command group built from a table. Help and name completion read only the table and import no command."""

    def __init__(
        self,
        *,
        table: Mapping[str, Command | Group],
        headings: Mapping[str, Sequence[str]] | None = None,
        title: str = "",
        **settings: Any,
    ) -> None:
        """`headings` maps each heading of the help to the names of its commands. `title` is the group's name for errors
        and examples, or empty for the program itself."""
        super().__init__(**settings)
        self.table = table
        self._headings = headings or {"Commands": list(table)}
        self._title = title

    def list_commands(self, ctx: click.Context) -> list[str]:
        return list(self.table)

    def get_command(self, ctx: click.Context, cmd_name: str) -> click.Command | None:
        """Return a placeholder with the name and summary, which is enough for completion. `load` returns the real
        command."""
        return click.Command(cmd_name, help=self.table[cmd_name].summary) if cmd_name in self.table else None

    def format_commands(self, ctx: click.Context, formatter: click.HelpFormatter) -> None:
        width = max(map(len, self.table))
        for heading, names in self._headings.items():
            with formatter.section(heading):
                formatter.write_dl([(name.ljust(width), self.table[name].summary) for name in names])

    def resolve_command(
        self, ctx: click.Context, args: list[str]
    ) -> tuple[str | None, click.Command | None, list[str]]:
        """Return the command that `args` start with. Raises UnknownNameError."""
        name = args[0]
        if name in self.table:
            return name, self.load(name), args[1:]
        if ctx.resilient_parsing:  # for shell completion, which ignores errors
            return None, None, args[1:]
        raise UnknownNameError(f"command of {self._title}" if self._title else "command", name, self.table)

    def load(self, name: str) -> click.Command:
        """Import a command, or build a group. Raises ConfigError if a package that it needs is not installed."""
        entry = self.table[name]
        title = f"{self._title} {name}".strip()
        if isinstance(entry, Group):
            example = f"Example: oven-controller {title} {entry.example}"
            return LazyGroup(
                table=entry.commands,
                title=title,
                name=name,
                help=f"{entry.summary}\n\n{example}",
                no_args_is_help=True,
            )
        command: click.Command = import_object("command", title, entry.target)
        command.name = name
        return command

    def invoke(self, ctx: click.Context) -> Any:
        """Run the command. The return value of its function becomes the exit code. Ctrl-C is exit code 130."""
        try:
            code = super().invoke(ctx)
        except KeyboardInterrupt:  # click would print "Aborted!"
            raise click.exceptions.Exit(130) from None
        if isinstance(code, int) and code:
            raise click.exceptions.Exit(code)
        return code
