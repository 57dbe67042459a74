"""Batches of nodes and edges that a loader yields, and the loader's options."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import groupby
from pathlib import Path
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from oven_core.errors import ConfigError

BATCH_ROWS: Final = 20_000
"""Maximum rows per batch: about 5 MB of short strings."""

Locate: TypeAlias = Callable[[int], str]
"""A function that converts a row's position in its batch into a location in the file, e.g. "line 7"."""


@dataclass(frozen=True, slots=True)
class Column:
    """A column of strings: the distinct strings, and the position of each row's string among them."""

    strings: Sequence[str]
    codes: NDArray[np.int32]

    @classmethod
    def from_repeated(cls, rows: Sequence[str]) -> Column:
        """Return a column that stores each distinct string once."""
        positions: dict[str, int] = {}
        codes = np.fromiter((positions.setdefault(string, len(positions)) for string in rows), np.int32, len(rows))
        return cls(list(positions), codes)

    @classmethod
    def from_distinct(cls, rows: Sequence[str]) -> Column:
        """Return a column of mostly distinct strings, for which a search for duplicates is not worthwhile."""
        return cls(rows, np.arange(len(rows), dtype=np.int32))

    def __len__(self) -> int:
        return len(self.codes)

    def select(self, rows: NDArray[np.intp]) -> Column:
        """Return a column of these rows only, without unused strings."""
        used_codes, codes = np.unique(self.codes[rows], return_inverse=True)
        return Column([self.strings[code] for code in used_codes.tolist()], codes.astype(np.int32))


@dataclass(frozen=True, slots=True)
class NodeBatch:
    """A batch of nodes that the file declares."""

    names: Sequence[str]
    kinds: Sequence[str]
    """The kind of each node, or "" for a node without a kind."""
    locate: Locate


@dataclass(frozen=True, slots=True)
class EdgeBatch:
    sources: Column
    relations: Column
    targets: Column
    weights: NDArray[Any] | None
    """The edges' weights as float64, or None if all are 1. The import checks that they are finite and not negative."""
    locate: Locate


@dataclass(frozen=True, slots=True)
class SkippedRows:
    """A count of skipped rows that do not fit into a graph of names and relations."""

    description: str
    count: int


@dataclass(frozen=True, slots=True)
class Licence:
    """The licence that applies to all files of a format, as an SPDX identifier."""

    name: str


Batch: TypeAlias = NodeBatch | EdgeBatch | SkippedRows | Licence


@dataclass(frozen=True, slots=True)
class LoaderOptions:
    languages: tuple[str, ...] = ()
    """Languages to load from ConceptNet. Both ends of an edge must have one of them. If empty, all are loaded."""


@dataclass(frozen=True, slots=True)
class EdgeRow:
    """One edge in a format that is read row by row."""

    source: str
    relation: str
    target: str
    weight: float
    number: int
    """Number of the edge's line or element."""


@dataclass(frozen=True, slots=True)
class NodeRow:
    """One node in a format that is read row by row."""

    name: str
    kind: str
    number: int


def check_declared(rows: Iterable[NodeRow | EdgeRow], path: Path, unit: str = "") -> Iterator[NodeRow | EdgeRow]:
    """Yield a file's rows, and check that every node is declared exactly once, before or after its edges. `unit` is
    the same as in `to_batches`."""
    names: set[str] = set()
    undeclared_nodes: dict[str, int] = {}  # undeclared node → number of the first edge that names it
    for row in rows:
        if isinstance(row, EdgeRow):
            undeclared_nodes |= {
                end: row.number for end in (row.source, row.target) if end not in names and end not in undeclared_nodes
            }
        elif row.name in names:
            position = f"{path}, {unit or 'node'} {row.number}"
            raise ConfigError(f"{position}: the node {row.name[:60]!r} is declared twice; give each node its own id")
        else:
            names.add(row.name)
            undeclared_nodes.pop(row.name, None)
        yield row
    for name, number in undeclared_nodes.items():
        position = f"{path}, {unit or 'edge'} {number}"
        raise ConfigError(f"{position}: the edge ends at {name[:60]!r}, but no node has that id; add the node")


def to_batches(rows: Iterable[NodeRow | EdgeRow], unit: str = "") -> Iterator[NodeBatch | EdgeBatch]:
    """Collect rows into batches of nodes or edges, in order. `unit` names what the row numbers count, e.g. "line". By
    default nodes and edges are numbered separately."""
    for kind, group in groupby(rows, key=type):
        batch: list[Any] = []
        for row in group:
            batch.append(row)
            if len(batch) >= BATCH_ROWS:
                yield _node_batch(batch, unit) if kind is NodeRow else _edge_batch(batch, unit)
                batch = []
        if batch:
            yield _node_batch(batch, unit) if kind is NodeRow else _edge_batch(batch, unit)


def _node_batch(rows: list[NodeRow], unit: str) -> NodeBatch:
    return NodeBatch(
        [row.name for row in rows], [row.kind for row in rows], lambda row: f"{unit or 'node'} {rows[row].number}"
    )


def _edge_batch(rows: list[EdgeRow], unit: str) -> EdgeBatch:
    return EdgeBatch(
        Column.from_distinct([row.source for row in rows]),
        Column.from_repeated([row.relation for row in rows]),
        Column.from_distinct([row.target for row in rows]),
        np.array([row.weight for row in rows], np.float64),
        lambda row: f"{unit or 'edge'} {rows[row].number}",
    )
