"""Import metrics from CSV files with a header, or from files with one JSON object per line. W&B, Lightning and many
training loops export such files."""

from __future__ import annotations

import csv
import json
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path

from oven_controller.importing.importer import TRUNCATED_ROWS, LogEntry, Recording
from oven_controller.importing.metric_names import STEP_COLUMNS, suggest_columns
from oven_controller.importing.rows import row_time
from oven_core.errors import ConfigError, reason

_CSV_SUFFIXES, _JSONL_SUFFIXES = (".csv",), (".jsonl", ".ndjson")
_RANGE_SUFFIXES = ("__MIN", "__MAX")
"""Suffixes of the columns with minima and maxima, which W&B adds to each metric's column when it exports a panel."""


class TableImporter:
    """Importer for a metrics history in CSV or JSON Lines."""

    summary = "a history exported as .csv or .jsonl, with a column `step`, `global_step` or `_step`"

    def find(self, source: Path) -> Path | None:
        return source if source.is_file() and source.suffix in _CSV_SUFFIXES + _JSONL_SUFFIXES else None

    def open(self, path: Path, skipped: Counter[str], step: str | None = None) -> Recording:
        return Recording(_read_csv(path, step) if path.suffix in _CSV_SUFFIXES else _read_jsonl(path, skipped, step))


def _read_csv(path: Path, step_name: str | None) -> Iterator[LogEntry]:
    with path.open(newline="", encoding="utf-8-sig") as file:
        rows = csv.reader(file)
        try:
            header = _clean_header(path, next(rows, []))
            step_index = _find_step_index(path, header, step_name)
            for cells in rows:
                cells += [""] * (len(header) - len(cells))  # a row may be shorter than the header
                values = {name: _parse_cell(cell) for name, cell in zip(header, cells, strict=False) if name}
                yield LogEntry(_parse_cell(cells[step_index]), values, row_time(values))
        except (csv.Error, UnicodeDecodeError) as error:
            line_number = rows.line_num + 1
            raise ConfigError(f"{path} is not a CSV file in UTF-8: line {line_number}: {error}") from error


def _parse_cell(cell: str) -> object:
    if not cell:
        return None  # not measured
    try:
        return float(cell)
    except ValueError:
        return cell


def _clean_header(path: Path, header: Sequence[str]) -> list[str]:
    """Return the column names without the prefix "<run> - " of W&B panels. Columns with minima and maxima get an empty
    name, so that they are skipped. Raises ConfigError if the table contains more than one run."""
    runs = {name.split(" - ", 1)[0] for name in header if " - " in name}
    if len(runs) > 1:
        raise ConfigError(f"{path} contains more than one run: {', '.join(sorted(runs)[:5])}. Export one of them")
    return ["" if name.endswith(_RANGE_SUFFIXES) else name.split(" - ", 1)[-1] for name in header]


def _find_step_index(path: Path, header: Sequence[str], step_name: str | None) -> int:
    """Return the index of the step column: `step_name`, or else the first of STEP_COLUMNS in the header."""
    columns = [name for name in header if name]
    if step_name is not None and step_name not in columns:
        hint = suggest_columns(step_name, columns)
        raise ConfigError(f"--rename {step_name}=step: {path} has no column {step_name}; {hint}")
    step_column = step_name or next((name for name in STEP_COLUMNS if name in header), None)
    if step_column is None:
        problem = f"{path} has no column with the step ({', '.join(STEP_COLUMNS)})"
        if not columns:
            raise ConfigError(f"{problem}: the file is empty")
        raise ConfigError(f"{problem}; its columns are {', '.join(columns[:8])}. Name one with --rename NAME=step")
    return list(header).index(step_column)


def _read_jsonl(path: Path, skipped: Counter[str], step_name: str | None) -> Iterator[LogEntry]:
    step_key = step_name or ""  # empty until a row with one of STEP_COLUMNS is found
    with path.open("rb") as lines:
        for line_number, line in enumerate(lines, 1):
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except (ValueError, RecursionError) as error:
                if not line.endswith(b"\n"):  # the program was killed while writing
                    skipped[TRUNCATED_ROWS] += 1
                    return
                raise ConfigError(f"{path}, line {line_number} is not JSON: {reason(error)}") from error
            if not isinstance(values, dict):
                raise ConfigError(f'{path}, line {line_number} is not a JSON object such as {{"step": 1, "loss": 2.5}}')
            step_key = step_key or next((name for name in STEP_COLUMNS if name in values), "")
            yield LogEntry(values.get(step_key), values, row_time(values))


IMPORTER = TableImporter()
