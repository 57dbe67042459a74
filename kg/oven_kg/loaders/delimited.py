"""Triples as .csv and .tsv, with a line of column names first."""

from __future__ import annotations

import csv
from collections.abc import Iterator
from pathlib import Path

from oven_controller.errors import ConfigError
from oven_kg.loaders.rows import Row, bounded, columns, triple


def rows(path: Path) -> Iterator[Row]:
    """Raises ConfigError with the line."""
    with bounded(path).open(newline="", encoding="utf-8") as file:
        reader = csv.DictReader(file, dialect="excel-tab" if path.suffix == ".tsv" else "excel", strict=True)
        try:
            names = columns(path, reader.fieldnames or ())
            for values in reader:
                yield triple(values, names, f"{path}, line {reader.line_num}")
        except (csv.Error, UnicodeDecodeError) as error:
            raise ConfigError(f"{path}, line {reader.line_num}: {error}") from error
