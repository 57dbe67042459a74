"""Load triples from JSON lines, and parse names and weights for other JSON and XML formats."""

from __future__ import annotations

import json
import math
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, Final

from oven_core.errors import ConfigError, reason
from oven_kg.loaders.graph_batches import Batch, EdgeRow, LoaderOptions, to_batches
from oven_kg.loaders.input_file import GraphFile, decode, read_lines
from oven_kg.loaders.triple_columns import find_triple_columns

MAX_LINE_BYTES: Final = 4 * 2**20
"""Maximum length of a line in bytes. After parsing, the worst line of this length takes 90 MB."""


def load_json_lines(graph_file: GraphFile, options: LoaderOptions) -> Iterator[Batch]:
    """Load one object per line, with a subject, predicate, object and optional weight."""
    return to_batches(_read_edges(graph_file), "line")


def _read_edges(graph_file: GraphFile) -> Iterator[EdgeRow]:
    for number, line in read_lines(graph_file, MAX_LINE_BYTES):
        location = f"{graph_file.path}, line {number}"
        text = decode(graph_file, f"line {number}", line.removeprefix(b"\xef\xbb\xbf"))
        try:
            values = json.loads(text)
        except (ValueError, RecursionError) as error:
            raise ConfigError(f"{location} is not valid JSON: {reason(error)}; fix the line") from error
        if not isinstance(values, dict):
            raise ConfigError(f'{location} is not an object; write e.g. {{"subject": …, "predicate": …, "object": …}}')
        yield parse_edge(graph_file.path, values, location, number)


def parse_edge(path: Path, values: Mapping[str, Any], location: str, number: int) -> EdgeRow:
    """Return the edge that an object describes. Raises ConfigError with the location."""
    columns = find_triple_columns(path, values)
    subject, relation, object_ = (
        parse_name(values[key], location, key) for key in (columns.subject, columns.relation, columns.object)
    )
    weight = parse_weight(values.get(columns.weight) if columns.weight else None, location)
    return EdgeRow(subject, relation, object_, weight, number)


def parse_name(value: object, location: str, label: str) -> str:
    """Return a name as a string. Whole numbers are accepted. Raises ConfigError for anything else."""
    if isinstance(value, str) and value:
        return value
    if isinstance(value, int) and not isinstance(value, bool):
        return str(value)
    raise ConfigError(f"{location}: the {label} is {repr(value)[:60]}; write a name")


def parse_weight(value: object, location: str) -> float:
    """Return a weight from a number or a string, or 1 if it is missing. Raises ConfigError for anything else."""
    if value is None or value == "":
        return 1.0
    try:
        if isinstance(value, int | float | str) and not isinstance(value, bool):
            return float(value)
    except OverflowError:
        return math.inf
    except ValueError:
        pass
    raise ConfigError(f"{location}: the weight {repr(value)[:60]} is not a number; write a number, or omit it")
