"""Rows of CSV, TSV, JSON and JSONL files with their lines. Errors name file, line and remedy."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from oven_core.errors import ConfigError, reason
from oven_core.files import longest_csv_field

LONGEST_FIELD = min(sys.maxsize, 2**24)
"""Characters in a CSV field. The library's limit of 131,072 is below some encyclopedia articles."""


def text_of(path: Path) -> str:
    """Return the file's text. Raises ConfigError if it cannot be read or is not UTF-8."""
    try:
        raw = path.read_bytes()
    except OSError as error:
        raise ConfigError(f"{path} cannot be read: {reason(error)}") from error
    try:
        return raw.decode("utf-8-sig")
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}, line {line}: byte 0x{raw[error.start]:02x} is not UTF-8; convert the file, e.g. "
            f"`iconv -f latin1 -t utf-8 {path.name} > converted.csv`"
        ) from error


def table(path: Path, columns: Sequence[str], *, tabs: bool = False) -> Iterator[tuple[int, dict[str, str]]]:
    """Yield each row of a CSV file, or of a tab-separated one without quoting, with its last line. Raises ConfigError
    for a missing column, and for a row with another number of fields than the header."""
    source = io.StringIO(text_of(path), newline="")
    rows = csv.reader(source, delimiter="\t", quoting=csv.QUOTE_NONE) if tabs else csv.reader(source, strict=True)
    try:
        with longest_csv_field(LONGEST_FIELD):
            header = [name.strip() for name in next(rows, [])]
            missing = [name for name in columns if name not in header]
            if missing:
                raise ConfigError(
                    f"{path}, line 1: there is no column {missing[0]!r} among {', '.join(header) or 'none'}; the "
                    f"published file has {', '.join(columns)}"
                )
            for row in rows:
                if not row:
                    continue
                if len(row) != len(header):
                    raise ConfigError(
                        f"{path}, line {rows.line_num}: {len(row)} fields, and the header has {len(header)}; the file "
                        "is torn or a quote is not closed: fetch it again"
                    )
                yield rows.line_num, dict(zip(header, row, strict=True))
    except csv.Error as error:
        raise ConfigError(f"{path}, line {rows.line_num}: {error}; the file is torn: fetch it again") from error


def json_lines(path: Path, keys: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each object of a JSONL file with its line. Raises ConfigError for a line that is not one, or lacks one of
    `keys`."""
    for number, line in enumerate(text_of(path).split("\n"), 1):
        if line.strip():
            yield number, _object(_json(path, line, number), path, f"line {number}", keys)


def json_value(path: Path) -> Any:
    """Return the value in a JSON file. Raises ConfigError if there is none."""
    return _json(path, text_of(path), None)


def json_objects(path: Path, values: object, keys: Sequence[str]) -> Iterator[tuple[int, dict[str, Any]]]:
    """Yield each of a JSON list's objects, numbered from 1. Raises ConfigError for another value, and for a missing
    key."""
    if not isinstance(values, list):
        raise ConfigError(f"{path}: a list of objects is needed, and this is a {type(values).__name__}")
    for number, value in enumerate(values, 1):
        yield number, _object(value, path, f"entry {number}", keys)


def label_of(path: Path, position: str, label: object, known: Mapping[str, Any]) -> Any:
    """Return the meaning of a file's label. Raises ConfigError for an unknown one."""
    key = str(label).strip()
    if key not in known:
        raise ConfigError(
            f"{path}, {position}: unknown label {key[:40]!r}; the published ones are {', '.join(map(repr, known))}; "
            "correct the row, or leave it out"
        )
    return known[key]


def _json(path: Path, text: str, line: int | None) -> Any:
    try:
        return json.loads(text)
    except json.JSONDecodeError as error:
        number = error.lineno if line is None else line
        raise ConfigError(f"{path}, line {number}: not JSON ({error.msg}); the file is torn: fetch it again") from error
    except RecursionError as error:
        raise ConfigError(f"{path}: nested too deeply to be a benchmark's file") from error


def _object(value: object, path: Path, position: str, keys: Sequence[str]) -> dict[str, Any]:
    if not isinstance(value, dict):
        raise ConfigError(f"{path}, {position}: an object is needed, and this is a {type(value).__name__}")
    for key in keys:
        if key not in value:
            raise ConfigError(f"{path}, {position}: there is no {key!r}; the published file has {', '.join(keys)}")
    return value
