"""Load triples from CSV and TSV files with a header line. Arrow reads them in batches."""

from __future__ import annotations

import contextlib
import csv
import io
import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any, Final

import pyarrow as pa
import pyarrow.csv as arrow_csv

from oven_core.errors import ConfigError
from oven_core.files import csv_field_limit
from oven_kg.loaders.arrow_columns import to_edge_batch
from oven_kg.loaders.graph_batches import Batch, LoaderOptions, Locate
from oven_kg.loaders.input_file import HEAD_BYTES, GraphFile, decode, read_lines
from oven_kg.loaders.triples import find_triple_columns

BLOCK_BYTES: Final = 2**21
"""Number of bytes to parse at a time. No row may be longer."""


@dataclass(frozen=True, slots=True)
class Dialect:
    """The separator, quoting and header of a file."""

    delimiter: str
    quoted: bool
    """Whether a quoted value may contain delimiters and line ends."""
    names: tuple[str, ...] = ()
    """Column names, or an empty tuple if they are in the first line."""

    @property
    def csv_options(self) -> dict[str, Any]:
        return {"delimiter": self.delimiter, "quoting": csv.QUOTE_MINIMAL if self.quoted else csv.QUOTE_NONE}


CSV: Final = Dialect(",", quoted=True)
TSV: Final = Dialect("\t", quoted=False)


def load_csv(graph_file: GraphFile, options: LoaderOptions) -> Iterator[Batch]:
    """Load CSV. Quoted values may contain commas and line ends. Raises ConfigError with the line."""
    return _load(graph_file, CSV)


def load_tsv(graph_file: GraphFile, options: LoaderOptions) -> Iterator[Batch]:
    """Load TSV. Quotes have no special meaning, as in IANA's registration of text/tab-separated-values."""
    return _load(graph_file, TSV)


def _load(graph_file: GraphFile, dialect: Dialect) -> Iterator[Batch]:
    columns = find_triple_columns(graph_file.path, _read_header(graph_file, dialect))
    for batch, locate in read_batches(graph_file, dialect, columns.names):
        yield to_edge_batch(graph_file, batch, columns, locate)


def _read_header(graph_file: GraphFile, dialect: Dialect) -> list[str]:
    """Return the column names from the first line."""
    first_line = next(iter(graph_file.head.removeprefix(b"\xef\xbb\xbf").splitlines()), b"")
    if len(first_line) >= HEAD_BYTES:
        raise ConfigError(f"{graph_file.path}, line 1 has more than {HEAD_BYTES:,} bytes; write the column names there")
    return next(csv.reader([decode(graph_file, "line 1", first_line)], **dialect.csv_options), [])


def read_batches(graph_file: GraphFile, dialect: Dialect, columns: Sequence[str]) -> Iterator[tuple[Any, Locate]]:
    """Yield Arrow batches of binary columns, each with a function for row locations. Raises ConfigError."""
    row_count = 0
    first_row = 1 if dialect.names else 2
    with graph_file.open() as file:
        try:
            reader = arrow_csv.open_csv(
                pa.PythonFile(file, mode="r"),
                read_options=arrow_csv.ReadOptions(
                    block_size=BLOCK_BYTES, use_threads=False, column_names=list(dialect.names) or None
                ),
                parse_options=arrow_csv.ParseOptions(
                    delimiter=dialect.delimiter,
                    quote_char='"' if dialect.quoted else False,
                    newlines_in_values=dialect.quoted,
                ),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(columns, pa.binary()), include_columns=list(columns)
                ),
            )
            for batch in reader:
                start = row_count + first_row
                yield batch, lambda row, start=start: _find_location(graph_file, dialect, start + row)  # type: ignore[misc]
                row_count += batch.num_rows
        except pa.ArrowException as error:
            raise _explain_error(graph_file, dialect, str(error)) from error


def _explain_error(graph_file: GraphFile, dialect: Dialect, problem: str) -> ConfigError:
    """Return an error with Arrow's message and the place in the file."""
    path = graph_file.path
    if match := re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", problem):
        row, expected, actual = map(int, match.groups())
        location = _find_location(graph_file, dialect, row)
        return ConfigError(
            f"{path}, {location} has {actual} columns instead of {expected}; check whether the file is truncated, or a "
            "quote or delimiter is missing"
        )
    if "straddling" in problem:
        for _ in read_lines(graph_file, BLOCK_BYTES):
            pass  # raises ConfigError if a line is too long
        location = _find_location(graph_file, dialect)
        return ConfigError(f"{path}, {location} opens a quote that does not end within {BLOCK_BYTES:,} bytes; close it")
    return ConfigError(f"{path} cannot be read: {problem.splitlines()[0][:200]}")


def _find_location(graph_file: GraphFile, dialect: Dialect, wanted_row: int = -1) -> str:
    """Read the file again to find the line where a row begins. By default, find the last readable line."""
    if not dialect.quoted:
        for row, (line, _) in enumerate(read_lines(graph_file, BLOCK_BYTES), 1):
            if row == wanted_row:
                return f"line {line}"
        return f"row {wanted_row}"
    with graph_file.open() as file, io.TextIOWrapper(file, "utf-8", errors="replace", newline="") as text:
        lines = iter(lambda: text.readline(BLOCK_BYTES), "")  # up to the empty string at the end of the file
        reader = csv.reader(lines, **dialect.csv_options)
        row, line = 0, 1
        with contextlib.suppress(csv.Error), csv_field_limit(BLOCK_BYTES):
            for values in reader:
                row += 1 if values else 0  # Arrow does not count blank lines
                if row == wanted_row:
                    break
                line = reader.line_num + 1
        return f"line {line}"
