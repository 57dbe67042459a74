"""Import metrics from CSV and TSV files with a header, as trainers, loggers and spreadsheets write them."""

from __future__ import annotations

import csv
from collections import Counter
from collections.abc import Iterable, Iterator, Sequence
from contextlib import AbstractContextManager
from pathlib import Path

from oven_controller.importing.importer import Recording
from oven_controller.importing.rows import to_number
from oven_controller.importing.step_columns import open_rows
from oven_controller.importing.text_lines import read_head, read_lines
from oven_core.errors import ConfigError

DELIMITERS = (",", "\t", ";")
SPACES = " "
"""Stands for a run of spaces or tabs between columns."""
_RANGE_SUFFIXES = ("__MIN", "__MAX")
"""Suffixes of the columns with minima and maxima, which W&B adds to each metric's column when it exports a panel."""


def open_table(path: Path, skipped: Counter[str], step: str | None = None) -> AbstractContextManager[Recording]:
    """Open a metrics history in a table."""
    delimiter = find_delimiter(read_head(path).splitlines()) or ","
    return open_rows(parse_table(read_lines(path), delimiter, path), step, path)


def find_delimiter(lines: Sequence[str]) -> str | None:
    """Return the delimiter of a table that begins with these lines, or None if they are not a table. The last line may
    be incomplete."""
    lines = [line for line in lines if line.strip()]
    comments = next((number for number, line in enumerate(lines) if not line.lstrip().startswith("#")), 0)
    lines = lines[comments:]
    if not lines:
        return None
    for delimiter in (*DELIMITERS, SPACES):
        header, *rows = [_split(line, delimiter) for line in lines[:20]]
        if len(header) < 2 or (not rows and delimiter == SPACES):
            continue
        complete = rows[:-1] if len(rows) > 1 else rows
        if any(to_number(cell) is not None for cell in header) and not _all_numbers([header, *complete]):
            continue
        if any(":" in cell or "=" in cell for cell in header):
            continue
        same_length = sum(len(row) == len(header) for row in complete)
        numbers = sum(any(to_number(cell) is not None for cell in row) for row in complete)
        needed = len(complete) if delimiter == SPACES else 0.5 * len(complete)
        if same_length >= needed and numbers >= needed:
            return delimiter
    return None


def parse_table(lines: Iterable[str], delimiter: str, source: object) -> Iterator[dict[str, object]]:
    """Yield the rows of a table as cells by column name. Comment lines and repeated headers are skipped. A header in
    the middle names the columns of the rows after it. Raises ConfigError if the table is damaged or contains more than
    one run."""
    header: list[str] = []
    comment = ""
    has_rows = False
    for row in _read_rows(lines, delimiter, source):
        if row[0].startswith("#"):
            comment = delimiter.join(row)  # may be the header
            continue
        cells = [_parse_cell(cell, delimiter) for cell in row]
        numbers = sum(isinstance(cell, float) for cell in cells)
        if not header and numbers and numbers == sum(cell is not None for cell in cells):
            names = _split(comment.lstrip("# "), delimiter)
            header = names if len(names) == len(row) else [f"column_{number}" for number in range(1, len(row) + 1)]
        elif not header or (not numbers and (not has_rows or _is_header(row, header))):
            header = _clean_header(row, source)
            continue
        has_rows = True
        yield {name: cell for name, cell in zip(header, cells, strict=False) if name}


def _read_rows(lines: Iterable[str], delimiter: str, source: object) -> Iterator[list[str]]:
    """Yield the rows that are not empty, without white space around the cells."""
    rows = _split_all(lines, delimiter)
    number = 0
    try:
        for row in rows:
            number += 1
            if any(cells := [cell.strip() for cell in row]):
                yield cells
    except csv.Error as error:
        raise ConfigError(f"{source} is not a CSV file: row {number + 1}: {error}") from error


def _parse_cell(cell: str, delimiter: str) -> float | str | None:
    """Return the number in a cell, its text, or None if it is empty. With semicolons, numbers may have a comma."""
    if not cell:
        return None
    number = to_number(cell.replace(",", ".") if delimiter == ";" else cell)
    return cell if number is None else number


def _split_all(lines: Iterable[str], delimiter: str) -> Iterator[list[str]]:
    if delimiter == SPACES:
        return (line.split() for line in lines)
    return csv.reader((f"{line}\n" for line in lines), delimiter=delimiter)


def _split(line: str, delimiter: str) -> list[str]:
    try:
        return next(iter(_split_all([line], delimiter)), [])
    except csv.Error:
        return []


def _all_numbers(rows: Sequence[Sequence[str]]) -> bool:
    return all(to_number(cell) is not None for row in rows for cell in row if cell)


def _is_header(cells: Sequence[str], header: Sequence[str]) -> bool:
    """Whether a row without numbers repeats the header, or is a new one."""
    known = sum(cell in header for cell in cells if cell)
    return known >= 1 and known >= 0.5 * min(len(cells), len(header))


def _clean_header(header: Sequence[str], source: object) -> list[str]:
    """Return the column names without the prefix "<run> - " of W&B panels. Columns with minima and maxima get an empty
    name, so that they are skipped. Raises ConfigError if the table contains more than one run."""
    runs = {name.split(" - ", 1)[0] for name in header if " - " in name}
    if len(runs) > 1:
        raise ConfigError(f"{source} contains more than one run: {', '.join(sorted(runs)[:5])}. Export one of them")
    return ["" if name.endswith(_RANGE_SUFFIXES) else name.split(" - ", 1)[-1] for name in header]
