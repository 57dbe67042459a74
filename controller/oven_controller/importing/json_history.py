"""Import metrics from files with one JSON object per line, or from a JSON file with a list of objects or an object of
lists, such as Keras' `History.history`."""

from __future__ import annotations

import json
from collections import Counter
from collections.abc import Iterable, Iterator
from contextlib import AbstractContextManager
from pathlib import Path
from typing import Any

from pydantic_core import from_json

from oven_controller.importing.importer import TRUNCATED_ROWS, Recording
from oven_controller.importing.rows import step_number
from oven_controller.importing.step_columns import open_rows
from oven_controller.importing.text_lines import read_lines, read_text
from oven_core.errors import ConfigError, reason

MAX_BYTES = 512 * 2**20
"""Maximum size of a JSON file. It is a single value and needs several times its size in memory."""
_MAX_DEPTH = 3
"""Maximum depth of objects in a row whose values become columns."""


def open_json_lines(path: Path, skipped: Counter[str], step: str | None = None) -> AbstractContextManager[Recording]:
    """Open a metrics history in JSON Lines."""
    return open_rows(parse_json_lines(read_lines(path), skipped, path), step, path)


def open_json(path: Path, skipped: Counter[str], step: str | None = None) -> AbstractContextManager[Recording]:
    """Open a metrics history in a JSON file."""
    return open_rows(json_rows(load_json(path), path), step, path)


def load_json(path: Path) -> Any:
    """Return the value in a JSON file. Raises ConfigError if the file is too large or not JSON."""
    size = path.stat().st_size
    if size > MAX_BYTES:
        raise ConfigError(
            f"{path} has {size / 2**20:.0f} MiB, but the maximum is {MAX_BYTES >> 20} MiB; import the same "
            "training from TensorBoard, W&B or JSONL"
        )
    try:
        return from_json(read_text(path))
    except ValueError as error:
        raise ConfigError(f"{path} is not JSON: {reason(error)}; was the program killed while writing it?") from error


def parse_json_lines(lines: Iterable[str], skipped: Counter[str], source: object) -> Iterator[dict[str, object]]:
    """Yield the objects as values by column name. A damaged last line is counted in `skipped`. Raises ConfigError if
    another line is not a JSON object."""
    damaged: tuple[int, Exception] | None = None
    for number, line in enumerate(lines, 1):
        if not line.strip():
            continue
        if damaged:
            number, error = damaged
            raise ConfigError(f"{source}, line {number} is not JSON: {reason(error)}") from error
        try:
            values = json.loads(line)
        except (ValueError, RecursionError) as error:
            damaged = number, error
            continue
        if not isinstance(values, dict):
            raise ConfigError(f'{source}, line {number} is not a JSON object such as {{"step": 1, "loss": 2.5}}')
        yield _flatten(values)
    if damaged and damaged[0] == 1:
        raise ConfigError(f"{source}, line 1 is not JSON: {reason(damaged[1])}") from damaged[1]
    if damaged:  # the program was killed while writing
        skipped[TRUNCATED_ROWS] += 1


def json_rows(content: Any, source: object) -> Iterator[dict[str, object]]:
    """Yield the rows of a history in JSON: a list of objects, an object of lists, objects by step, or one of these in
    an object. Raises ConfigError for another value."""
    rows = _find_rows(content)
    if rows is None and isinstance(content, dict):
        rows = next((inner for value in content.values() if (inner := _find_rows(value)) is not None), None)
    if rows is None:
        raise ConfigError(
            f"{source} has no log_history of a Hugging Face trainer, no list of objects and no object of lists"
        )
    return map(_flatten, rows)


def _find_rows(value: Any) -> list[dict[str, Any]] | None:
    match value:
        case list() if value and all(isinstance(row, dict) for row in value):
            return value
        case dict() if value and all(
            isinstance(row, dict) and step_number(key) is not None for key, row in value.items()
        ):
            return [{"step": key} | row for key, row in value.items()]
        case dict():
            lists = {name: column for name, column in value.items() if isinstance(column, list)}
            if lists and all(not isinstance(cell, list | dict) for column in lists.values() for cell in column):
                return [
                    {name: column[index] for name, column in lists.items() if index < len(column)}
                    for index in range(max(map(len, lists.values())))
                ]
    return None


def _flatten(values: dict[str, Any], depth: int = 1) -> dict[str, object]:
    """Return the values of nested objects as columns such as `train/loss`."""
    if not any(isinstance(value, dict) for value in values.values()):
        return values
    flat: dict[str, object] = {}
    for name, value in values.items():
        if isinstance(value, dict) and depth < _MAX_DEPTH:
            flat |= {f"{name}/{inner}": cell for inner, cell in _flatten(value, depth + 1).items()}
        elif not isinstance(value, dict):
            flat[name] = value
    return flat
