"""Rows of separated values as Arrow's batches, and the lines that they stand in."""

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
from oven_core.files import longest_csv_field
from oven_kg.loaders.batches import Where
from oven_kg.loaders.source import HEAD, Input, lines

BLOCK: Final = 2**21
"""Bytes that are parsed at a time; no row may be longer."""


@dataclass(frozen=True, slots=True)
class Layout:
    """How a file separates its values."""

    delimiter: str
    quoted: bool
    """Whether "…" may hold delimiters and line ends."""
    names: tuple[str, ...] = ()
    """Of its columns; none if the first line has them."""

    @property
    def first_row(self) -> int:
        """Number of the first row of values, from 1."""
        return 1 if self.names else 2


CSV: Final = Layout(",", quoted=True)
TSV: Final = Layout("\t", quoted=False)


def header(held: Input, layout: Layout) -> list[str]:
    """The names in the first line. Raises ConfigError."""
    first = held.head.removeprefix(b"\xef\xbb\xbf").splitlines()[:1]
    if first and len(first[0]) >= HEAD:
        raise ConfigError(f"{held.path}, line 1 has more than {HEAD:,} bytes; write the names of the columns there")
    try:
        text = first[0].decode() if first else ""
    except UnicodeDecodeError as error:
        raise ConfigError(
            f"{held.path}, line 1 is not UTF-8 (byte 0x{first[0][error.start]:02x}); convert the file, e.g. with "
            "`iconv -t UTF-8`"
        ) from None
    return next(csv.reader([text], delimiter=layout.delimiter, quoting=_quoting(layout)), [])


def batches(held: Input, layout: Layout, wanted: Sequence[str]) -> Iterator[tuple[Any, Where]]:
    """Batches of the wanted columns as binary, each with the lines of its rows. Raises ConfigError."""
    done = 0
    with held.open() as file:
        try:
            reader = arrow_csv.open_csv(
                pa.PythonFile(file, mode="r"),
                read_options=arrow_csv.ReadOptions(
                    block_size=BLOCK, use_threads=False, column_names=list(layout.names) or None
                ),
                parse_options=arrow_csv.ParseOptions(
                    delimiter=layout.delimiter,
                    quote_char='"' if layout.quoted else False,
                    newlines_in_values=layout.quoted,
                ),
                convert_options=arrow_csv.ConvertOptions(
                    column_types=dict.fromkeys(wanted, pa.binary()), include_columns=list(wanted)
                ),
            )
            for batch in reader:
                first = done
                yield batch, lambda row, first=first: _place(held, layout, first + row + layout.first_row)  # type: ignore[misc]
                done += batch.num_rows
        except pa.ArrowException as error:
            raise _explained(held, layout, str(error)) from error


def _explained(held: Input, layout: Layout, problem: str) -> ConfigError:
    """What Arrow found, with the line."""
    if found := re.search(r"Row #(\d+): Expected (\d+) columns, got (\d+)", problem):
        row, expected, got = map(int, found.groups())
        return ConfigError(
            f"{held.path}, {_place(held, layout, row)} has {got} columns and should have {expected}; is the file cut "
            "short, or a quote or delimiter left out?"
        )
    if "straddling" in problem:
        for _ in lines(held, BLOCK):
            pass
        place = _place(held, layout, 2**62)
        return ConfigError(f"{held.path}, {place} opens a quote that is not closed within {BLOCK:,} bytes; close it")
    return ConfigError(f"{held.path} cannot be read: {problem.splitlines()[0][:200]}")


def _place(held: Input, layout: Layout, wanted: int) -> str:
    """The line in which a row begins, by reading the file again; the last line that can be read if there are fewer."""
    if not layout.quoted:
        for row, (line, _) in enumerate(lines(held, BLOCK), 1):
            if row == wanted:
                return f"line {line}"
        return f"row {wanted}"
    with held.open() as file, io.TextIOWrapper(file, "utf-8", errors="replace", newline="") as text:
        reader = csv.reader(
            iter(lambda: text.readline(BLOCK), ""), delimiter=layout.delimiter, quoting=_quoting(layout)
        )
        row, line = 0, 1
        with contextlib.suppress(csv.Error), longest_csv_field(BLOCK):
            for values in reader:
                row += bool(values)
                if row == wanted:
                    return f"line {line}"
                line = reader.line_num + 1
        return f"line {line}"


def _quoting(layout: Layout) -> Any:
    return csv.QUOTE_MINIMAL if layout.quoted else csv.QUOTE_NONE
