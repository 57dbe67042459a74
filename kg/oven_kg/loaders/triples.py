"""Finds the parts of a triple by the usual names of columns, keys or attributes, and parses their values."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any, Final, NamedTuple

from oven_core.errors import ConfigError
from oven_kg.loaders.graph_batches import EdgeRow

SUBJECTS: Final = ("subject", "source", "from", "head", "src", "s", "start")
RELATIONS: Final = ("predicate", "relation", "rel", "type", "p", "label")
OBJECTS: Final = ("object", "target", "to", "tail", "dst", "o", "end")
WEIGHTS: Final = ("weight", "strength", "w")
DEFAULT_RELATION: Final = "RELATED"
"""The relation of edges that name none."""


class TripleColumns(NamedTuple):
    """The column names for the parts of a triple in one file."""

    subject: str
    relation: str
    object: str
    weight: str | None

    @property
    def names(self) -> list[str]:
        return [name for name in self if name is not None]


def find_triple_columns(path: Path, names: Iterable[str]) -> TripleColumns:
    """Find the columns of a triple by their usual names, ignoring case. Raises ConfigError if one is missing."""
    by_lower_case = {name.strip().lower(): name for name in names}
    subject, relation, object_, weight = (
        next((by_lower_case[name] for name in usual_names if name in by_lower_case), None)
        for usual_names in (SUBJECTS, RELATIONS, OBJECTS, WEIGHTS)
    )
    if subject is None or relation is None or object_ is None:
        raise ConfigError(
            f"{path} has the columns {', '.join(list(by_lower_case)[:12]) or 'none'}; a graph of triples needs "
            "subject, predicate and object (or source, relation, target), and may have weight"
        )
    return TripleColumns(subject, relation, object_, weight)


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
