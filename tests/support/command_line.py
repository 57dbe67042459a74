"""Commands of `oven-controller`, called in the test's own process."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

import click

from oven_controller.cli.lazy_group import LazyGroup
from oven_controller.cli.main import app


def call(command: str, args: Sequence[str] = ()) -> int:
    """Run a command, for example "kg lint", and return its exit code. Its errors are raised."""
    code = app.main(args=[*command.split(), *args], prog_name="oven-controller", standalone_mode=False)
    return int(code or 0)


def inner_commands(command: click.Command) -> dict[str, click.Command]:
    """Return the commands of a group by name; for a command that is not a group, an empty mapping."""
    if isinstance(command, LazyGroup):
        return {name: command.load(name) for name in command.table}
    return dict(command.commands) if isinstance(command, click.Group) else {}


def all_commands(
    command: click.Command = app, words: tuple[str, ...] = ()
) -> Iterator[tuple[tuple[str, ...], click.Command]]:
    """Return every command and group by its words, the program itself first."""
    yield words, command
    for name, inner in inner_commands(command).items():
        yield from all_commands(inner, (*words, name))
