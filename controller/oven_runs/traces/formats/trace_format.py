"""What a format is: how a file is recognised, read and written, and what it loses."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

from pydantic import ValidationError

from oven_core import plugins
from oven_core.errors import ConfigError, reason
from oven_core.files import atomic_file
from oven_runs.traces.formats.chat_messages import NotReadable
from oven_runs.traces.jsonl import SHOWN, BadLine, rows
from oven_runs.traces.records import Trace

Row = dict[str, Any]


class TraceFormat(Protocol):
    """An entry point of `oven.traces`."""

    @property
    def about(self) -> str:
        """What it is, in a line."""

    @property
    def loses(self) -> Mapping[str, str]:
        """Field of ours → why it does not come back from a file of this format."""

    @property
    def aside(self) -> tuple[str, ...]:
        """Fields that the format has no place for, and that come back since its free field takes them."""

    def claims(self, path: Path) -> bool:
        """Whether the file or folder looks like it. Raises ConfigError where it cannot be read."""

    def read(self, path: Path) -> Iterator[Trace | BadLine]:
        """Its traces. Raises ConfigError where it cannot be read."""

    def write(self, path: Path, traces: Iterable[Trace]) -> int:
        """Write them, and return how many. Raises ConfigError and OSError."""


@dataclass(frozen=True)
class LineFormat:
    """A format with a JSON object a line."""

    about: str
    known_by: Callable[[Row], bool]
    """Whether the file's first row is of this format."""
    traces: Callable[[Row, str], Iterable[Trace]]
    """(row, a name for what has none) → its traces. Raises NotReadable."""
    rows: Callable[[Trace], Iterable[Row]]
    file_name: str = ""
    """In a folder."""
    beside: Callable[[], Mapping[str, bytes]] = field(default=dict)
    """Files that stand beside it, by name."""
    loses: Mapping[str, str] = field(default_factory=dict)
    aside: tuple[str, ...] = ()

    def claims(self, path: Path) -> bool:
        """Whether the first row says so."""
        if path.is_dir() and not (self.file_name and (path / self.file_name).is_file()):
            return False
        first = next((row for _, row in rows(self._file(path))), None)
        return isinstance(first, dict) and self.known_by(first)

    def read(self, path: Path) -> Iterator[Trace | BadLine]:
        """A bad row is yielded as such, and the next is read."""
        file = self._file(path)
        for number, row in rows(file):
            if isinstance(row, BadLine):
                yield row
                continue
            try:
                yield from list(self.traces(row, f"{file.stem}-{number}"))
            except NotReadable as error:
                yield BadLine(number, "malformed", str(error)[:SHOWN])
            except (ValidationError, RecursionError) as error:
                yield BadLine(number, "malformed", reason(error)[:SHOWN])
            except (AttributeError, LookupError, TypeError) as error:
                yield BadLine(number, "malformed", f"a field has another form than it should ({reason(error)})"[:SHOWN])

    def write(self, path: Path, traces: Iterable[Trace]) -> int:
        """To the file, or to the format's file in a folder that is there."""
        file, count = self._file(path), 0
        if file.is_dir():
            raise ConfigError(f"{file} is a folder, and this format is a file: name one in it")
        with atomic_file(file) as out:
            for trace in traces:
                for row in self.rows(trace):
                    out.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
                count += 1
        for name, content in self.beside().items():
            with (
                contextlib.suppress(FileExistsError),
                file.with_name(name).open("xb") as out,
            ):  # one that is there stays
                out.write(content)
        return count

    def _file(self, path: Path) -> Path:
        return path / self.file_name if self.file_name and path.is_dir() else path


def named(name: str) -> TraceFormat:
    """The format of that name. Raises UnknownNameError and ConfigError."""
    found: TraceFormat = plugins.load("traces", "format of traces", name)
    return found


def recognised(path: Path) -> tuple[str, TraceFormat]:
    """The name and format of a file or folder. Raises ConfigError where no format takes it."""
    if not path.exists():
        raise ConfigError(f"no such file or folder: {path}")
    if path.is_file() and path.stat().st_size == 0:
        raise ConfigError(f"{path} is empty: it has no trace; is what writes it still at work?")
    names = list(plugins.points("traces"))
    for name in names:
        one = named(name)
        if one.claims(path):
            return name, one
    raise ConfigError(f"{path} is in no format of traces that is known ({', '.join(names)}); name it with --from")
