"""Reads rows from published CSV, TSV, JSON and JSONL files. Errors contain the file, the line and a remedy."""

from __future__ import annotations

import csv
import io
import json
import sys
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from oven_core.errors import ConfigError, reason
from oven_core.files import csv_field_limit

MAX_FIELD_CHARACTERS = min(sys.maxsize, 2**24)
"""Maximum characters in a CSV field. The csv module's limit of 131,072 is too low for some encyclopedia articles."""


def read_rows(path: Path, columns: Sequence[str]) -> Iterator[tuple[str, dict[str, Any]]]:
    """Yield the location and the values of each row of a .csv, .tsv or .jsonl file, or of the list in a .json file. TSV
    files have no quoting, as in GLUE. Raises ConfigError if a row lacks one of `columns`, or the file is damaged."""
    try:
        with csv_field_limit(MAX_FIELD_CHARACTERS):
            for location, row in _records(path):
                if not isinstance(row, dict) or None in row or any(row.get(column) is None for column in columns):
                    raise ConfigError(
                        f"{location}: the row lacks one of the columns {', '.join(columns)}; the file is truncated or "
                        "has another format: download it again"
                    )
                yield location, row
    except (csv.Error, json.JSONDecodeError, RecursionError) as error:
        raise ConfigError(f"{path}: {reason(error)}; the file is damaged: download it again") from error


def _records(path: Path) -> Iterator[tuple[str, Any]]:
    text = read_text(path)
    if path.suffix in (".csv", ".tsv"):
        dialect = {"delimiter": "\t", "quoting": csv.QUOTE_NONE} if path.suffix == ".tsv" else {"strict": True}
        reader = csv.DictReader(io.StringIO(text, newline=""), **dialect)
        reader.fieldnames = [name.strip() for name in reader.fieldnames or ()]
        for row in reader:
            yield f"{path}, line {reader.line_num}", row
    elif path.suffix == ".jsonl":
        for number, line in enumerate(text.split("\n"), 1):
            if line.strip():
                yield f"{path}, line {number}", json.loads(line)
    else:
        content = json.loads(text)
        for number, value in enumerate(content if isinstance(content, list) else [content], 1):
            yield f"{path}, entry {number}", value


def read_text(path: Path) -> str:
    """Return the file's text. Raises ConfigError if it cannot be read or is not UTF-8."""
    try:
        raw = path.read_bytes()
        return raw.decode("utf-8-sig")
    except OSError as error:
        raise ConfigError(f"cannot read {path}: {reason(error)}") from error
    except UnicodeDecodeError as error:
        line = raw.count(b"\n", 0, error.start) + 1
        raise ConfigError(
            f"{path}, line {line}: byte 0x{raw[error.start]:02x} is not UTF-8; convert the file, e.g. "
            f"`iconv -f latin1 -t utf-8 {path.name} > converted.csv`"
        ) from error


def look_up_label(location: str, label: object, values: Mapping[str, Any]) -> Any:
    """Return the value of `label` in `values`. Raises ConfigError for an unknown label."""
    key = str(label).strip()
    if key not in values:
        raise ConfigError(
            f"{location}: unknown label {key[:40]!r}; expected one of {', '.join(map(repr, values))}; correct or "
            "remove the row"
        )
    return values[key]
