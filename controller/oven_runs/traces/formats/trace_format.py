"""The interface of trace formats: detect, read and write files, and list the fields that a format loses."""

from __future__ import annotations

import contextlib
import json
from abc import ABC, abstractmethod
from collections.abc import Callable, Iterable, Iterator, Mapping
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Final

from pydantic import ValidationError

from oven_core.errors import ConfigError, reason
from oven_core.files import atomic_file
from oven_runs.traces.formats.chat_messages import NotReadable
from oven_runs.traces.jsonl import MAX_REASON_CHARACTERS, BadLine, read_rows
from oven_runs.traces.trace_records import Trace

Row = dict[str, Any]
READING_ERRORS: Final = (NotReadable, ValidationError, RecursionError, AttributeError, LookupError, TypeError)
"""Errors for malformed objects. `malformed_line` converts them to a BadLine."""


@dataclass(frozen=True)
class TraceFormat(ABC):
    """Reads and writes the files of one trace format."""

    about: str
    """A description in one line."""
    loses: Mapping[str, str] = field(default_factory=dict, kw_only=True)
    """For each record field that this format loses, the reason."""
    extra_fields: tuple[str, ...] = field(default=(), kw_only=True)
    """Fields of a record that are stored as extra data (`extra_data`), because the format has no place for them."""

    @abstractmethod
    def claims(self, path: Path) -> bool:
        """Return whether the file or folder looks like this format. Raises ConfigError if it cannot be read."""

    @abstractmethod
    def read(self, path: Path) -> Iterator[Trace | BadLine]:
        """Yield the traces of a file, and a BadLine for each bad row. Raises ConfigError if it cannot be read."""

    @abstractmethod
    def write(self, path: Path, traces: Iterable[Trace]) -> int:
        """Write the traces and return their number. Raises ConfigError and OSError."""


@dataclass(frozen=True)
class LineFormat(TraceFormat):
    """A trace format with one JSON object per line."""

    recognises: Callable[[Row], bool]
    """Returns whether a file with this first row has this format."""
    traces: Callable[[Row, str], Iterable[Trace | BadLine]]
    """Returns the traces of a row. The string is the id for a trace that has no id. Raises NotReadable."""
    rows: Callable[[Trace], Iterable[Row]]
    """Returns the rows that store a trace."""
    file_name: str = ""
    """Default file name in a folder."""
    metadata: Mapping[str, bytes] = field(default_factory=dict)
    """Additional files to write, by name."""

    def claims(self, path: Path) -> bool:
        if path.is_dir() and not (self.file_name and (path / self.file_name).is_file()):
            return False
        first = next((row for _, row in read_rows(self._file_in(path))), None)
        return isinstance(first, dict) and self.recognises(first)

    def read(self, path: Path) -> Iterator[Trace | BadLine]:
        file = self._file_in(path)
        for number, row in read_rows(file):
            if isinstance(row, BadLine):
                yield row
                continue
            try:
                traces = list(self.traces(row, f"{file.stem}-{number}"))
            except READING_ERRORS as error:
                yield malformed_line(number, error)
            else:
                for trace in traces:
                    yield replace(trace, number=number) if isinstance(trace, BadLine) else trace

    def write(self, path: Path, traces: Iterable[Trace]) -> int:
        """Write to the file, or to the format's file in an existing folder."""
        file, count = self._file_in(path), 0
        if file.is_dir():
            raise ConfigError(f"{file} is a folder, but this format needs a file: name a file in it")
        with atomic_file(file) as out:
            for trace in traces:
                for row in self.rows(trace):
                    out.write(json.dumps(row, ensure_ascii=False, separators=(",", ":")).encode() + b"\n")
                count += 1
        for name, content in self.metadata.items():
            with contextlib.suppress(FileExistsError), file.with_name(name).open("xb") as out:
                out.write(content)
        return count

    def _file_in(self, path: Path) -> Path:
        return path / self.file_name if self.file_name and path.is_dir() else path


def malformed_line(number: int, error: Exception, prefix: str = "") -> BadLine:
    """Convert one of READING_ERRORS to a BadLine."""
    if isinstance(error, NotReadable):
        detail = str(error)
    elif isinstance(error, ValidationError | RecursionError):
        detail = reason(error)
    else:
        detail = f"a field has an unexpected form ({reason(error)})"
    return BadLine(number, "malformed", f"{prefix}{detail}"[:MAX_REASON_CHARACTERS])
