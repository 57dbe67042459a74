"""Read, write and append to JSON Lines files of traces. Reading is lazy and reports each bad line."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, TypeAlias

from pydantic import ValidationError

from oven_core.errors import ConfigError, reason
from oven_core.files import atomic_file
from oven_core.terminal_text import clean
from oven_runs.traces.trace_records import VERSION, Trace

Fault: TypeAlias = Literal["cut", "not_json", "foreign_version", "malformed", "too_long"]

MAX_LINE_BYTES: Final = 64 << 20
"""Maximum bytes of a line: twice a trace of 1,000 steps with 30 kB each. Longer lines are not read into memory."""
MAX_REASON_CHARACTERS: Final = 200
"""Maximum number of characters of a reason in an error message, because pydantic may quote a whole field."""


@dataclass(frozen=True)
class BadLine:
    """A line without a valid trace, and the reason. `number` counts from 1."""

    number: int
    fault: Fault
    detail: str


def read_rows(path: Path) -> Iterator[tuple[int, dict[str, Any] | BadLine]]:
    """Yield each line's number and its JSON object, or a BadLine if it has none. Skip blank lines. Raises ConfigError
    if the file cannot be read or is empty."""
    if not path.is_file():
        raise ConfigError(f"{path} {'is not a file' if path.exists() else 'does not exist'}; name a JSON lines file")
    try:
        file = path.open("rb")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {reason(error)}") from error
    with file:
        if not file.peek(1):
            raise ConfigError(f"{path} is empty and contains no traces; is its writer still running?")
        number = 0
        while line := file.readline(MAX_LINE_BYTES + 1):
            number += 1
            if len(line) > MAX_LINE_BYTES:
                while line and not line.endswith(b"\n"):  # skip the rest of the line
                    line = file.readline(MAX_LINE_BYTES)
                yield number, BadLine(number, "too_long", f"more than {MAX_LINE_BYTES >> 20} MiB")
            elif line.strip():
                yield number, _parse_line(line, number)


def _parse_line(line: bytes, number: int) -> dict[str, Any] | BadLine:
    try:
        row = json.loads(line)
    except (ValueError, RecursionError) as error:
        if line.endswith(b"\n"):
            return BadLine(number, "not_json", reason(error)[:MAX_REASON_CHARACTERS])
        return BadLine(number, "cut", f"the line stops after {len(line):,} bytes, because its writer was killed")
    if not isinstance(row, dict):
        return BadLine(number, "not_json", f"it is a {type(row).__name__} instead of an object")
    return row


def parse_row(row: dict[str, Any], number: int = 0) -> Trace | BadLine:
    """Parse the JSON object of a line. Return the trace, or a BadLine with the reason why it is not a trace."""
    if (version := row.get("version")) != VERSION:
        return BadLine(number, "foreign_version", f"version {version!r}, but this program reads version {VERSION}")
    try:
        return Trace.model_validate(row)
    except (ValidationError, RecursionError, ValueError) as error:
        return BadLine(number, "malformed", reason(error)[:MAX_REASON_CHARACTERS])


def read(path: Path) -> Iterator[Trace]:
    """Yield each trace of `path`. Raises ConfigError at the first bad line."""
    for number, row in read_rows(path):
        trace = row if isinstance(row, BadLine) else parse_row(row, number)
        if isinstance(trace, BadLine):
            raise ConfigError(bad_line_error(path, trace))
        yield trace


def bad_line_error(path: Path, bad: BadLine) -> str:
    """Return the error message for a file with a bad line."""
    remedies: dict[Fault, str] = {
        "cut": "remove that line, or let its writer resume",
        "foreign_version": "write the file with the installed version of oven-controller",
    }
    remedy = remedies.get(bad.fault, "`oven-controller traces check` counts such lines by kind")
    return clean(f"{path}, line {bad.number}: {bad.fault.replace('_', ' ')}: {bad.detail}; {remedy}")


def to_row(trace: Trace) -> dict[str, Any]:
    """Return a trace as a JSON object: its kind and version, then every field that differs from its default."""
    return {"kind": trace.kind, "version": trace.version, **trace.model_dump(mode="json", exclude_defaults=True)}


def to_line(trace: Trace) -> bytes:
    """Return the trace as one line of a file."""
    return json.dumps(to_row(trace), ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def write(path: Path, traces: Iterable[Trace]) -> None:
    """Replace the file with these traces. If it raises OSError, the old file remains."""
    with atomic_file(path) as out:
        out.writelines(map(to_line, traces))


def append(path: Path, trace: Trace) -> None:
    """Append a trace in one write, after removing the incomplete line of a killed writer. Wait for other processes that
    append, because the line that they are writing looks incomplete too. Raises OSError."""
    with path.open("ab+") as out:
        with contextlib.suppress(OSError):  # on a file system without locks, append without one
            fcntl.flock(out, fcntl.LOCK_EX)
        truncate_incomplete(out)
        out.write(to_line(trace))


def truncate_incomplete(out: BinaryIO) -> None:
    """Truncate an open file after its last complete line. Raises OSError."""
    end = out.seek(0, 2)
    while end > 0:
        start = max(0, end - 65536)
        out.seek(start)
        newline = out.read(end - start).rfind(b"\n")
        if newline >= 0:
            end = start + newline + 1
            break
        end = start
    if end < out.seek(0, 2):
        out.truncate(end)
