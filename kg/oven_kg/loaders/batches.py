"""Batches of nodes and edges that a loader yields, and the options that it is given."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass, field
from typing import Any, Final, TypeAlias

import numpy as np
from numpy.typing import NDArray

from oven_kg.loaders.node_names import NodeNames

BATCH: Final = 20_000
"""Rows that are in memory at a time: some 5 MB of short texts."""

Where: TypeAlias = Callable[[int], str]
"""A row's position in its batch → its place in the file, e.g. "line 7"."""


@dataclass(frozen=True, slots=True)
class Column:
    """Texts by number: all that the rows have, and which of them each row has."""

    texts: Sequence[str]
    codes: NDArray[np.int32]

    @classmethod
    def of(cls, rows: Sequence[str]) -> Column:
        known: dict[str, int] = {}
        codes = np.fromiter((known.setdefault(text, len(known)) for text in rows), np.int32, len(rows))
        return cls(list(known), codes)

    @classmethod
    def distinct(cls, rows: Sequence[str]) -> Column:
        """Rows of which many differ: looking each up once more would cost more than it saves."""
        return cls(rows, np.arange(len(rows), dtype=np.int32))

    def __len__(self) -> int:
        return len(self.codes)

    def of_rows(self, rows: NDArray[np.intp]) -> Column:
        """These rows alone, without the texts that they do not have."""
        used, codes = np.unique(self.codes[rows], return_inverse=True)
        return Column([self.texts[code] for code in used.tolist()], codes.astype(np.int32))

    def row_of(self, code: int) -> int:
        """The first row that has this text."""
        return int(np.argmax(self.codes == code))


@dataclass(frozen=True, slots=True)
class Nodes:
    """Nodes that the file says something of."""

    names: Sequence[str]
    kinds: Sequence[str]
    """As many; "" where the file says none."""
    where: Where


@dataclass(frozen=True, slots=True)
class Edges:
    sources: Column
    relations: Column
    targets: Column
    weights: NDArray[Any] | None
    """float64; None for 1 each. The import checks that they are finite and not negative."""
    where: Where


@dataclass(frozen=True, slots=True)
class LeftOut:
    """Rows that a graph of names and relations has no place for."""

    what: str
    count: int


@dataclass(frozen=True, slots=True)
class Licence:
    """What all files of this format may be used under, as an SPDX identifier."""

    name: str


Batch: TypeAlias = Nodes | Edges | LeftOut | Licence


@dataclass(frozen=True, slots=True)
class Options:
    """What a loader is told, and what the files of one import share."""

    languages: tuple[str, ...] = ()
    """Of ConceptNet: both ends of an edge have one of these; empty for all."""
    names: NodeNames = field(default_factory=NodeNames)
    """Of formats whose files number their nodes over several files."""


@dataclass(frozen=True, slots=True)
class Edge:
    """A row of a format that is read row by row."""

    source: str
    relation: str
    target: str
    weight: float
    place: int
    """Number of its line, row or element."""


@dataclass(frozen=True, slots=True)
class Node:
    name: str
    kind: str
    place: int


def batched(rows: Iterable[Node | Edge], unit: str = "") -> Iterator[Batch]:
    """Rows in batches of one sort, in their order. `unit`: what a row's `place` counts, e.g. "line"; by default nodes
    and edges each have numbers of their own."""
    nodes: list[Node] = []
    edges: list[Edge] = []
    for row in rows:
        if isinstance(row, Node):
            if edges:
                yield _edges(edges, unit)
                edges = []
            nodes.append(row)
            if len(nodes) >= BATCH:
                yield _nodes(nodes, unit)
                nodes = []
        else:
            if nodes:
                yield _nodes(nodes, unit)
                nodes = []
            edges.append(row)
            if len(edges) >= BATCH:
                yield _edges(edges, unit)
                edges = []
    if nodes:
        yield _nodes(nodes, unit)
    if edges:
        yield _edges(edges, unit)


def _nodes(rows: list[Node], unit: str) -> Nodes:
    return Nodes([row.name for row in rows], [row.kind for row in rows], lambda n: f"{unit or 'node'} {rows[n].place}")


def _edges(rows: list[Edge], unit: str) -> Edges:
    return Edges(
        Column.distinct([row.source for row in rows]),
        Column.of([row.relation for row in rows]),
        Column.distinct([row.target for row in rows]),
        np.array([row.weight for row in rows], np.float64),
        lambda n: f"{unit or 'edge'} {rows[n].place}",
    )
