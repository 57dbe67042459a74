"""From a networkx graph of any class to compressed sparse rows: one pass over its edges."""

from __future__ import annotations

from collections.abc import Hashable, Iterator, Mapping, Sequence
from typing import Any, Final

import numpy as np

from oven_kg.large.networkx.csr import BackendGraph, Csr, Integers, Numbers, Rows

EXACT: Final = 2**53
"""The largest whole number up to which each is a double: longer ones would be rounded by sums that networkx keeps
exact."""


class NodeList:
    """The nodes of a networkx graph, in its order."""

    def __init__(self, graph: Any) -> None:
        self.nodes = list(graph)
        self._index = {node: at for at, node in enumerate(self.nodes)}

    def __len__(self) -> int:
        return len(self.nodes)

    def index(self, node: Hashable) -> int:
        """Raises KeyError for a node that the graph has not."""
        return self._index[node]

    def decode(self, indices: Sequence[int] | Integers) -> list[Any]:
        """The nodes at `indices`."""
        nodes = self.nodes
        return [nodes[at] for at in (indices.tolist() if isinstance(indices, np.ndarray) else indices)]


def convert(graph: Any, edge_attrs: Mapping[Hashable, Any] | None) -> BackendGraph:
    """`graph` as rows of integers, with the edge attributes in `edge_attrs` (name → what an edge without it counts).
    Another attribute is read from the graph when it is asked for.

    Raises NotImplementedError for attributes that are not finite numbers, or whole numbers above 2**53.
    """
    labels = NodeList(graph)
    several = graph.is_multigraph()
    names = {} if edge_attrs is None else edge_attrs
    indptr, edges = [0], {}
    ends: list[int] = []
    for u, neighbours in graph.adjacency():
        for v, data in neighbours.items():
            edges[u, v] = len(ends)
            ends.extend([labels.index(v)] * (len(data) if several else 1))
        indptr.append(len(ends))
    out = Rows(np.array(indptr, np.int64), np.array(ends, np.int32))
    into, into_edges = out, None
    if graph.is_directed():
        into, into_edges = _backwards(graph, labels, edges)
    arrays = {
        name: _numbers(name, [data.get(name, missing) for data in _attributes(graph)])
        for name, missing in names.items()
    }

    def values(attribute: Hashable) -> Numbers:
        if attribute is None:
            return np.ones(len(ends), np.int64)
        if attribute not in arrays:
            arrays[attribute] = _numbers(attribute, [data.get(attribute, 1) for data in _attributes(graph)])
        return arrays[attribute]

    return BackendGraph(Csr(labels, out, into, into_edges, graph.is_directed(), values), graph)


def _attributes(graph: Any) -> Iterator[Mapping[Hashable, Any]]:
    """Those of each edge, in the order of the rows."""
    several = graph.is_multigraph()
    for _, neighbours in graph.adjacency():
        for data in neighbours.values():
            yield from data.values() if several else (data,)


def _backwards(graph: Any, labels: NodeList, edges: Mapping[tuple[Any, Any], int]) -> tuple[Rows, Integers]:
    """The rows against the edges, in networkx's order of predecessors, and each entry's edge."""
    several = graph.is_multigraph()
    indptr = [0]
    starts: list[int] = []
    positions: list[int] = []
    for v in labels.nodes:
        for u, data in graph.pred[v].items():
            parallel = len(data) if several else 1
            starts.extend([labels.index(u)] * parallel)
            positions.extend(range(edges[u, v], edges[u, v] + parallel))
        indptr.append(len(starts))
    return Rows(np.array(indptr, np.int64), np.array(starts, np.int32)), np.array(positions, np.int64)


def _numbers(name: Hashable, values: Sequence[Any]) -> Numbers:
    """Whole numbers stay whole, so that lengths of paths are what networkx would add up."""
    if all(isinstance(value, int) for value in values):
        if any(abs(value) > EXACT for value in values):
            raise NotImplementedError(f"oven_csr adds doubles, and an edge's {name!r} is a whole number above 2**53")
        return np.array(values, np.int64)
    if not all(isinstance(value, (int, float, np.number)) for value in values):
        raise NotImplementedError(f"oven_csr computes with numbers, and an edge has another {name!r}")
    array = np.array(values, np.float64)
    if np.isnan(array).any():
        raise NotImplementedError(f"oven_csr computes with numbers, and an edge's {name!r} is NaN")
    return array
