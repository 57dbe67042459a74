"""Finds the columns, keys or attributes of a triple by their usual names."""

from __future__ import annotations

from collections.abc import Iterable
from pathlib import Path
from typing import Final, NamedTuple

from oven_core.errors import ConfigError

SUBJECTS: Final = ("subject", "source", "from", "head", "src", "s", "start")
RELATIONS: Final = ("predicate", "relation", "rel", "type", "p", "label")
OBJECTS: Final = ("object", "target", "to", "tail", "dst", "o", "end")
WEIGHTS: Final = ("weight", "strength", "w")
DEFAULT_RELATION: Final = "RELATED"
"""The relation of edges without one."""


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
