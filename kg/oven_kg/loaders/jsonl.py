"""Triples as .jsonl: one object per line."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Final

from oven_controller.errors import ConfigError
from oven_kg.loaders.rows import Row, bounded, columns, triple

LINE: Final = 64 * 1024
"""Bytes."""


def rows(path: Path) -> Iterator[Row]:
    """Raises ConfigError with the line."""
    with bounded(path).open("rb") as file:
        number = 0
        while line := file.readline(LINE + 1):
            number += 1
            where = f"{path}, line {number}"
            if len(line) > LINE:
                raise ConfigError(f"{where} has more than {LINE} bytes; a triple needs fewer")
            if not line.strip():
                continue
            try:
                values = json.loads(line)
            except (ValueError, RecursionError) as error:
                raise ConfigError(f"{where} is not JSON: {error}") from error
            if not isinstance(values, dict):
                raise ConfigError(f'{where} is not an object; write e.g. {{"subject": …, "predicate": …, "object": …}}')
            yield triple(values, columns(path, values), where)
