"""Files of records, one a line: written whole or added to, read as a stream, with each bad line named."""

from __future__ import annotations

import contextlib
import fcntl
import json
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any, BinaryIO, Final, Literal, TypeAlias, TypeVar

from pydantic import ValidationError

from oven_core.errors import ConfigError, reason
from oven_core.files import atomic_file
from oven_core.terminal_text import clean
from oven_runs.traces.records import VERSION, Record

R = TypeVar("R", bound=Record)
Fault: TypeAlias = Literal["cut", "not_json", "foreign_version", "another_kind", "malformed", "too_long"]

LINE_BYTES: Final = 64 << 20
"""The longest line: a trace of 1,000 steps with 30 kB each is half of it. A longer one cannot be a record, and would
fill the memory."""
SHOWN: Final = 200
"""Characters of a reason that an error shows: pydantic's may quote a whole field."""


@dataclass(frozen=True)
class BadLine:
    """A line that holds no record, and why. `number` counts from 1."""

    number: int
    fault: Fault
    detail: str


def opened(path: Path) -> BinaryIO:
    """The file, open. Raises ConfigError, also for an empty one, a folder, a pipe."""
    try:
        if not path.is_file():
            raise ConfigError(f"{path} is {'no file' if path.exists() else 'not there'}; name a file of JSON lines")
        if path.stat().st_size == 0:
            raise ConfigError(f"{path} is empty: it has no record; is what writes it still at work?")
        return path.open("rb")
    except (OSError, ValueError) as error:
        raise (
            error if isinstance(error, ConfigError) else ConfigError(f"cannot read {path}: {reason(error)}")
        ) from error


def rows(path: Path) -> Iterator[tuple[int, dict[str, Any] | BadLine]]:
    """Each line's number and JSON object; blank lines are passed over. Raises ConfigError where the file cannot be
    read or is empty."""
    with opened(path) as file:
        number = 0
        while line := file.readline(LINE_BYTES + 1):
            number += 1
            if len(line) > LINE_BYTES:
                while line and not line.endswith(b"\n"):
                    line = file.readline(LINE_BYTES)
                yield number, BadLine(number, "too_long", f"more than {LINE_BYTES >> 20} MiB")
            elif line.strip():
                yield number, _row(line, number)


def _row(line: bytes, number: int) -> dict[str, Any] | BadLine:
    try:
        found = json.loads(line)
    except (ValueError, RecursionError) as error:
        if line.endswith(b"\n"):
            return BadLine(number, "not_json", reason(error)[:SHOWN])
        return BadLine(number, "cut", f"the line ends after {len(line):,} bytes without its end: its writer was killed")
    if not isinstance(found, dict):
        return BadLine(number, "not_json", f"a {type(found).__name__}, and a record is an object")
    return found


def scan(path: Path, record: type[R]) -> Iterator[R | BadLine]:
    """Each record of `path`, or why a line holds none. Raises ConfigError where the file cannot be read or is empty."""
    for number, row in rows(path):
        yield row if isinstance(row, BadLine) else parsed(row, record, number)


def parsed(row: dict[str, Any], record: type[R], number: int = 0) -> R | BadLine:
    """The record that a line's object is."""
    kind, version = record.model_fields["kind"].default, row.get("version")
    if row.get("kind") != kind:
        said = row.get("kind")
        what = f"a {said}" if isinstance(said, str) else "no record of ours"
        return BadLine(number, "another_kind", f"it is {what[:SHOWN]}, and a {kind} was asked for")
    if version != VERSION:
        return BadLine(number, "foreign_version", f"version {version!r}; this reads {VERSION}")
    try:
        return record.model_validate(row)
    except (ValidationError, RecursionError, ValueError) as error:
        return BadLine(number, "malformed", reason(error)[:SHOWN])


def read(path: Path, record: type[R], *, cut: bool = False) -> Iterator[R]:
    """Each record of `path`. Raises ConfigError at the first line that holds none, except, with `cut`, at a last one
    that was not written to its end."""
    for found in scan(path, record):
        if not isinstance(found, BadLine):
            yield found
        elif not (cut and found.fault == "cut"):
            raise ConfigError(refusal(path, found))


def refusal(path: Path, bad: BadLine) -> str:
    """The message for a file with a bad line."""
    remedies: dict[Fault, str] = {
        "cut": "remove that line, or let its writer resume",
        "foreign_version": "write it with the version of oven-controller that is installed here",
        "another_kind": "name a file of the right kind, or convert it: `oven-controller traces convert --help`",
    }
    remedy = remedies.get(bad.fault, "`oven-controller traces check` counts such lines by kind")
    return clean(f"{path}, line {bad.number}: {bad.fault.replace('_', ' ')}: {bad.detail}; {remedy}")


def line(record: Record) -> bytes:
    """A record as a line of a file."""
    said = record.model_dump(mode="json", exclude_defaults=True)
    marks = {name: getattr(record, name) for name in ("kind", "version")}
    return json.dumps({**marks, **said}, ensure_ascii=False, separators=(",", ":")).encode() + b"\n"


def write(path: Path, records: Iterable[Record]) -> int:
    """Replace `path` by these records, and return how many. Raises OSError, and leaves the old file then."""
    count = 0
    with atomic_file(path) as out:
        for record in records:
            out.write(line(record))
            count += 1
    return count


def append(path: Path, record: Record) -> None:
    """Add a record at the end, in one write, after what a killed writer left unfinished was cut off. Other processes
    that add to the file are waited for: a line that is being written looks unfinished, too. Raises OSError."""
    with path.open("ab+") as out:
        with contextlib.suppress(OSError):  # a file system without locks: better a record than none
            fcntl.flock(out, fcntl.LOCK_EX)
        cut_unfinished(out)
        out.write(line(record))


def cut_unfinished(out: BinaryIO) -> None:
    """What a killed writer left after the last whole line of an open file is cut off."""
    end = out.seek(0, 2)
    if end == 0:
        return
    out.seek(end - 1)
    if out.read(1) == b"\n":
        return
    at = end
    while at > 0:
        start = max(0, at - 65536)
        out.seek(start)
        found = out.read(at - start).rfind(b"\n")
        if found >= 0:
            out.truncate(start + found + 1)
            return
        at = start
    out.truncate(0)
