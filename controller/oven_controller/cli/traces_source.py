"""The file of traces that a command is given."""

from __future__ import annotations

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated

import typer

from oven_core.errors import ConfigError
from oven_runs.traces.formats.trace_format import TraceFormat, named, recognised
from oven_runs.traces.jsonl import BadLine, refusal
from oven_runs.traces.records import Trace

Source = Annotated[Path, typer.Argument(metavar="FILE", help="Traces in any format that is known: a file or a folder.")]
From = Annotated[
    str | None,
    typer.Option("--from", metavar="FORMAT", help="Its format.", show_default="recognised by its first line"),
]


def source_format(source: Path, name: str | None) -> tuple[str, TraceFormat]:
    """The format's name, and itself. Raises ConfigError and UnknownNameError."""
    return recognised(source) if name is None else (name, named(name))


def source_traces(source: Path, name: str | None, *, skip_bad: bool = False) -> Iterator[Trace]:
    """Its traces. With `skip_bad`, a line that holds none is named on standard error and left out.

    Raises ConfigError, without `skip_bad` at the first such line, and UnknownNameError."""
    for one in source_format(source, name)[1].read(source):
        if not isinstance(one, BadLine):
            yield one
        elif skip_bad:
            print(f"left out: {refusal(source, one)}", file=sys.stderr)
        else:
            raise ConfigError(f"{refusal(source, one)}; or leave such lines out with --skip-bad")
