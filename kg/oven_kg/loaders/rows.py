"""Rows that a loader yields, and the records that are made of them."""

from __future__ import annotations

import math
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any, Final, TypeAlias

from oven_controller.errors import ConfigError
from oven_kg.graph.graph_yaml import Edge, Node, Records

BYTES: Final = 256 * 2**20
"""Of a file that is read row by row."""
WHOLE: Final = 64 * 2**20
"""Of a file that has to be read at once; in memory it is some ten times as large."""
NODES: Final = 500_000
EDGES: Final = 1_000_000
"""A record takes some 300 bytes, so that a graph at both limits has half a gibibyte."""
TEXT: Final = 1_000
"""Characters of a name or label."""

SUBJECTS: Final = ("subject", "source", "from", "head", "src", "s", "start")
RELATIONS: Final = ("predicate", "relation", "rel", "type", "p", "label")
OBJECTS: Final = ("object", "target", "to", "tail", "dst", "o", "end")
WEIGHTS: Final = ("weight", "strength", "w")


@dataclass(frozen=True, slots=True)
class Named:
    """A node that the file says something of."""

    id: str
    kind: str = ""
    text: str = ""


@dataclass(frozen=True, slots=True)
class Triple:
    """An edge. `weight` between 0 and 1 is taken as its strength; any other counts as 1."""

    src: str
    relation: str
    dst: str
    weight: float = 1.0
    id: str = ""


Row: TypeAlias = Named | Triple


def bounded(path: Path, limit: int = BYTES) -> Path:
    """`path`, if it is a file of at most so many bytes. Raises ConfigError."""
    try:
        size = path.stat().st_size
    except OSError as error:
        raise ConfigError(f"cannot read the graph {path}: {error.strerror}") from error
    if not path.is_file():
        raise ConfigError(f"{path} is not a file; name the file that holds the graph")
    if size > limit:
        raise ConfigError(f"{path} has {size} bytes; at most {limit} are read from a {path.suffix} file")
    return path


def columns(path: Path, names: Iterable[str]) -> tuple[str, str, str, str | None]:
    """The columns of subject, relation, object and weight, by the usual names in any case. Raises ConfigError."""
    known = {name.strip().lower(): name for name in names}
    found = [next((known[name] for name in wanted if name in known), None) for wanted in (SUBJECTS, RELATIONS, OBJECTS)]
    if None in found:
        raise ConfigError(
            f"{path} has the columns {', '.join(list(known)[:12]) or 'none'}; a graph of triples needs subject, "
            "predicate and object (or source, relation, target), and may have weight"
        )
    subject, relation, object_ = (name or "" for name in found)
    return subject, relation, object_, next((known[name] for name in WEIGHTS if name in known), None)


def triple(values: dict[str, Any], names: tuple[str, str, str, str | None], where: str) -> Triple:
    """A row as a triple. Raises ConfigError that names the row."""
    subject, relation, object_ = (values.get(name) for name in names[:3])
    if not all(isinstance(value, str | int) and str(value) for value in (subject, relation, object_)):
        raise ConfigError(f"{where}: {subject!r}, {relation!r}, {object_!r} is not a triple; each has to be a name")
    weight = values.get(names[3]) if names[3] else None
    try:
        strength = 1.0 if weight in (None, "") else float(weight)
    except (TypeError, ValueError):
        raise ConfigError(f"{where}: the weight {weight!r} is not a number") from None
    return Triple(str(subject), str(relation), str(object_), strength)


def gather(path: Path, rows: Iterable[Row], nodes: int = NODES, edges: int = EDGES) -> Records:
    """All rows as records: a node of a triple that the file says nothing of is there as well. An edge that the file
    does not grade has no grade and no source, which the lint will say. Raises ConfigError beyond the limits."""
    named: dict[str, Node] = {}
    found: list[Edge] = []
    for row in rows:
        if isinstance(row, Named):
            _short(path, row.id, row.kind, row.text)
            named[row.id] = Node(id=row.id, kind=row.kind, text=row.text)
        else:
            _short(path, row.src, row.relation, row.dst, row.id)
            for end in (row.src, row.dst):
                if end not in named:
                    named[end] = Node(id=end, kind="")
            strength = row.weight if math.isfinite(row.weight) and 0 < row.weight <= 1 else 1.0
            id_ = row.id or f"{len(found) + 1}"
            found.append(Edge(id_, row.src, row.relation.upper(), row.dst, strength, grade="", source=""))
        if len(named) > nodes or len(found) > edges:
            raise ConfigError(f"{path} holds more than {nodes} nodes or {edges} edges; give a part of it")
    return Records(tuple(named.values()), tuple(found))


def _short(path: Path, *texts: str) -> None:
    for text in texts:
        if len(text) > TEXT:
            raise ConfigError(f"{path} holds a name of {len(text)} characters, {text[:40]!r}…; at most {TEXT} are read")
