"""A graph's rows as integers, in networkx's order of nodes and neighbours: what the backend's functions run on."""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Sequence
from dataclasses import dataclass, field
from typing import Any, NamedTuple, Protocol

import numpy as np
from numpy.typing import NDArray

Integers = NDArray[np.integer[Any]]
Numbers = NDArray[np.number[Any]]


class Labels(Protocol):
    """The nodes of a graph, in order: from a node to its index and back."""

    def __len__(self) -> int: ...

    def index(self, node: Hashable) -> int:
        """Raises KeyError where the graph has no such node."""
        ...

    def decode(self, indices: Sequence[int] | Integers) -> list[Any]:
        """The nodes at `indices`, in their order."""
        ...


class Rows(NamedTuple):
    """One direction of a graph: what node i leads to is `ends[indptr[i] : indptr[i + 1]]`, in networkx's order, one
    entry an edge. Parallel edges are adjacent."""

    indptr: Integers  # (nodes + 1,)
    ends: Integers  # (entries,)


class WeightedRows(NamedTuple):
    """One direction with each neighbour once, at the weight of the lightest edge to it."""

    indptr: Integers  # (nodes + 1,)
    ends: Integers  # (neighbours,)
    weights: Numbers  # (neighbours,)


@dataclass(frozen=True, eq=False)
class Csr:
    """A graph in compressed sparse rows, both ways. Of an undirected graph both are the same, and an edge has an entry
    at each of its ends (a loop has one)."""

    labels: Labels
    out: Rows
    into: Rows
    into_edges: Integers | None
    """Entry of `into` → the entry of `out` that is the same edge; None for an undirected graph."""
    directed: bool
    values: Callable[[Hashable], Numbers]
    """An edge attribute by name, for each entry of `out`: 1 where an edge lacks it, as networkx counts."""
    walks: dict[Hashable, Any] = field(default_factory=dict, repr=False)
    """Attribute → what PageRank by it made of the rows."""
    _lightest: dict[tuple[Hashable, bool], WeightedRows] = field(default_factory=dict, repr=False)

    def __len__(self) -> int:
        return len(self.labels)

    def rows(self, *, backwards: bool = False) -> Rows:
        """The rows out of the nodes, or against the edges."""
        return self.into if backwards else self.out

    def lightest(self, attribute: Hashable, *, backwards: bool = False) -> WeightedRows:
        """Rows with each neighbour once, at the least of `attribute` over its parallel edges; kept for later calls."""
        found = self._lightest.get((attribute, backwards))
        if found is None:
            rows, values = self.rows(backwards=backwards), self.values(attribute)
            if backwards and self.into_edges is not None:
                values = values[self.into_edges]
            found = self._lightest[(attribute, backwards)] = _without_parallels(rows, values)
        return found

    def loops(self) -> Integers:
        """How many edges each node has to itself."""
        sources = np.repeat(np.arange(len(self)), np.diff(self.out.indptr))
        return np.bincount(sources[sources == self.out.ends], minlength=len(self))


def _without_parallels(rows: Rows, values: Numbers) -> WeightedRows:
    entries = len(rows.ends)
    first = np.ones(entries, bool)
    first[1:] = rows.ends[1:] != rows.ends[:-1]
    first[rows.indptr[:-1][np.diff(rows.indptr) > 0]] = True
    if first.all():
        return WeightedRows(rows.indptr, rows.ends, values)
    starts = np.flatnonzero(first)
    before = np.concatenate([[0], np.cumsum(first)])
    return WeightedRows(before[rows.indptr], rows.ends[starts], np.minimum.reduceat(values, starts))


class BackendGraph:
    """A networkx graph that was converted for one of the backend's functions."""

    __networkx_backend__ = "oven_csr"

    def __init__(self, csr: Csr, original: Any) -> None:
        self.csr = csr
        self.original = original

    def __len__(self) -> int:
        return len(self.csr)

    def __iter__(self) -> Any:
        return iter(self.original)

    def __contains__(self, node: object) -> bool:
        return node in self.original

    def is_directed(self) -> bool:
        """Whether its edges have a direction."""
        return self.csr.directed

    def is_multigraph(self) -> bool:
        """Whether it may have parallel edges."""
        return bool(self.original.is_multigraph())

    def part(self, nodes: Integers) -> Any:
        """A copy of the graph between the nodes with these numbers, in networkx's class."""
        return self.original.subgraph(self.csr.labels.decode(nodes)).copy()

    def neighbors(self, node: Hashable) -> Iterable[Any]:
        """The nodes that `node` leads to, in networkx's order."""
        neighbours: Iterable[Any] = self.original.neighbors(node)
        return neighbours

    def predecessors(self, node: Hashable) -> Iterable[Any]:
        """The nodes that lead to `node`, in networkx's order."""
        before: Iterable[Any] = self.original.predecessors(node)
        return before
