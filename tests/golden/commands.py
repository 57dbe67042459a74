"""Every command of the command line with its arguments and options: one line for each, sorted."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Sequence
from types import UnionType
from typing import Any, Literal, get_args, get_origin
from unittest import mock

import typer.core
import typer.main
from tests.golden.store import Json, Limits
from tests.support.command_line import inner_commands

from oven_controller.cli.main import app
from oven_controller.stack.process_table import PROCESSES, process_function

FILE = "commands.txt"
PROGRAM = "oven-controller"
FEW = 100
"""Whole numbers that are listed one by one."""
WITHOUT_PARSER = ("learner", "mesh")
"""Processes of the stack that read their arguments without a parser, or take none."""


def documents(limits: Limits) -> Iterator[tuple[str, Json]]:
    """The file, and its lines."""
    found = [*_typed(PROGRAM, typer.main.get_command(app)), *_processes()]
    yield FILE, sorted(found)


def _typed(name: str, command: Any) -> Iterator[str]:
    yield name
    place = 0
    for parameter in command.params:
        argument = parameter.param_type_name == "argument"
        place += argument
        spelt = [parameter.metavar or parameter.name] if argument else [*parameter.opts, *parameter.secondary_opts]
        flag = not argument and parameter.is_flag
        many = parameter.nargs != 1 or getattr(parameter, "multiple", False)
        names = [] if argument else (parameter.metavar or "").split("|")
        values = names if len(names) > 1 else _choices(parameter)
        yield _line(name, spelt, place if argument else 0, flag, many, parameter.required, parameter.default, values)
    for word, inner in inner_commands(command).items():
        yield from _typed(f"{name} {word}", inner)


def _choices(parameter: Any) -> Sequence[object] | None:
    """The values that a parameter takes, if it takes a few: those of a Literal, or whole numbers between two bounds."""
    annotation = parameter.type_descriptor.annotation
    kinds = annotation.__args__ if isinstance(annotation, UnionType) else (annotation,)
    low, high = getattr(parameter, "min", None), getattr(parameter, "max", None)
    if int in kinds and low is not None and high is not None and high - low < FEW:
        return range(low, high + 1)
    return next((get_args(kind) for kind in kinds if get_origin(kind) is Literal), None)


def _processes() -> Iterator[str]:
    for name in sorted(PROCESSES):
        if name in WITHOUT_PARSER:
            yield f"process {name}"
        else:
            yield from _parsed(f"process {name}", process_function(name))


def _parsed(command: str, main: Callable[[list[str]], object]) -> Iterator[str]:
    return _typed(command, _parser(command, main))


def _parser(command: str, main: Callable[[list[str]], object]) -> Any:
    """The typer command that a program made when it was about to read its arguments, and got no
    further. Raises LookupError when it read none."""

    def parse(self: object, *_: object, **__: object) -> None:
        raise _ParserMade(self)

    kept = {name: value for name, value in os.environ.items() if not name.startswith("OVEN_")}
    with (
        mock.patch.object(typer.core.TyperCommand, "main", parse),
        mock.patch.dict(os.environ, kept, clear=True),
    ):
        try:
            main([])
        except _ParserMade as made:
            return made.parser
    raise LookupError(f"{command} read no arguments")


class _ParserMade(Exception):
    def __init__(self, parser: object) -> None:
        super().__init__()
        self.parser = parser


def _line(
    command: str,
    spelt: Sequence[str],
    place: int,
    flag: bool,
    many: bool,
    required: bool,
    default: object,
    choices: Any,
) -> str:
    """`place`: of an argument, counted from 1; 0: it is an option. `many`: it takes several values, or can be repeated.
    A default that is no plain value is left out: it may name a folder of this machine."""
    words = [f"argument {place}" if place else "flag" if flag else "option"]
    words += ["required"] * bool(required) + ["many"] * bool(many)
    if isinstance(default, bool | int | float | str) and default is not False and default != "":
        words.append(f"default {default!r}")
    if choices is not None:
        words.append("choices " + ",".join(str(one) for one in choices))
    return f"{command} {'|'.join(spelt)}: {', '.join(words)}"
