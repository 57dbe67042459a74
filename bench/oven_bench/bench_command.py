"""Commands of the benches: what an entry point of `oven.benches` names, and what several of them share."""

from __future__ import annotations

import contextlib
import json
import tempfile
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Annotated, Any

import typer
import typer.main
from rich.console import Console
from rich.table import Table

from oven_core.errors import ConfigError

Json = Annotated[bool, typer.Option("--json", help="Print one JSON object.")]
Jobs = Annotated[int, typer.Option(min=1, help="Runs at a time, each on one thread.")]
FirstSeed = Annotated[int, typer.Option(help="Seed of the first; the others follow it.")]
HomeFolder = Annotated[
    Path | None, typer.Option("--home", metavar="DIR", help="Keep runs and caches there, not in a temporary folder.")
]

GraphFolder = Annotated[
    Path | None,
    typer.Option("--graph", metavar="FOLDER", help="Scores of this large graph, not of one of the sources trained on."),
]
ResultsFile = Annotated[
    Path | None,
    typer.Option("--results", metavar="FILE", help="Keep each run there, and continue after those that it has."),
]


class Bench:
    """A measurement and its command. `main` has its options as annotated parameters, and returns the exit code."""

    def __init__(self, name: str, main: Callable[..., int], summary: str, example: str, notes: str = "") -> None:
        """`example`: arguments to show in the help; `notes`: what else stands there."""
        self.summary = summary
        self._program = f"oven-controller bench {name}"
        app = typer.Typer(add_completion=False, context_settings={"help_option_names": ["-h", "--help"]})
        epilog = f"Example: {self._program} {example}\n\n{notes}"
        app.command(name, help=summary, epilog=epilog)(main)
        self.command: Any = typer.main.get_command(app)
        """typer's."""

    def run(self, args: Sequence[str]) -> int:
        """Its exit code. Raises typer's errors for options that there are not, and OvenError."""
        return int(self.command.main(args=self._each(args), prog_name=self._program, standalone_mode=False) or 0)

    def _each(self, args: Sequence[str]) -> list[str]:
        """An option that can be repeated takes several values at once, too: `--arm a b` is `--arm a --arm b`."""
        several = {name for option in self.command.params if option.multiple for name in option.opts}
        found: list[str] = []
        option, values = "", 0
        for word in args:
            if word.startswith("-"):
                option, values = word if word in several else "", 0
            elif option:
                found += [option] if values else []
                values += 1
            found.append(word)
        return found


def one_of(names: Iterable[str], about: str) -> Any:
    """An option whose value is one of some names."""
    known = tuple(names)

    def parsed(text: str) -> str:
        if text not in known:
            raise typer.BadParameter(f"{text!r} is none of {', '.join(known)}")
        return text

    return typer.Option(parser=parsed, metavar="|".join(known), help=about)


def comma_separated(text: str) -> list[str]:
    return [part.strip() for part in text.split(",") if part.strip()]


def seed_list(text: str) -> list[int]:
    """ "1,3-5" → [1, 3, 4, 5]. Raises ConfigError."""
    found: list[int] = []
    for part in comma_separated(text):
        first, _, last = part.partition("-")
        if not first.isdigit() or (last and not last.isdigit()):
            raise ConfigError(f"--seeds {text} has {part!r}; give numbers and ranges, e.g. 100,102-104")
        found += range(int(first), int(last or first) + 1)
    if not found:
        raise ConfigError(f"--seeds {text or '(nothing)'} has no seed; give numbers and ranges, e.g. 100,102-104")
    return found


@contextlib.contextmanager
def home_folder(given: Path | None) -> Iterator[Path]:
    """The folder of `--home`, absolute; without one, a temporary one that goes with the context."""
    with tempfile.TemporaryDirectory() as scratch:
        yield (given or Path(scratch)).absolute()


def print_object(found: Mapping[str, object], as_json: bool) -> None:
    """On one line for scripts, or with colours and indents for people."""
    text = json.dumps(found)
    if as_json:
        print(text)
    else:
        Console().print_json(text)


def print_table(found: Mapping[str, object], headings: Sequence[str], rows: Iterable[Sequence[str]]) -> None:
    """A table of what was measured, and below it a line for each figure."""
    console, table = Console(), Table(*headings)
    for row in rows:
        table.add_row(*row)
    if table.columns:
        console.print(table)
    for name, value in found.items():
        console.print(f"{name}: {value}")
