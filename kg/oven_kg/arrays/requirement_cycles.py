"""Cycles of REQUIRES edges in a large graph. A requirement comes before what needs it, so cycles make no sense."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from oven_kg.arrays.builder import Builder
from oven_kg.arrays.graph_arrays import GraphArrays

REQUIRES: Final = "REQUIRES"


def find_cycle(arrays: GraphArrays) -> list[int] | None:
    """The nodes of one cycle, the first one repeated at the end; None if there is no cycle."""
    edges = np.flatnonzero(_on_cycle(arrays))
    if not len(edges):
        return None
    successor = dict(zip(arrays.sources[edges].tolist(), arrays.dst[edges].tolist(), strict=True))
    # In a strong component every node has a successor, so the walk returns to a node that it visited.
    visited: dict[int, None] = {}
    node = int(arrays.sources[edges[0]])
    while node not in visited:
        visited[node] = None
        node = successor[node]
    nodes = list(visited)
    return [*nodes[nodes.index(node) :], node]


def without_cycles(arrays: GraphArrays) -> tuple[GraphArrays, int]:
    """The graph without the REQUIRES edges on cycles, and the number of these edges."""
    on_cycle = _on_cycle(arrays)
    rest = ~on_cycle
    builder = Builder()
    builder.declare(arrays.names(range(arrays.nodes)), [arrays.kind_names[kind] for kind in arrays.kinds.tolist()])
    relations = builder.relation_numbers(arrays.relations)
    builder.numbered_edges(arrays.sources[rest], relations[arrays.rel[rest]], arrays.dst[rest], arrays.weight[rest])
    return builder.finish(licence=arrays.licence), int(on_cycle.sum())


def _on_cycle(arrays: GraphArrays) -> NDArray[np.bool_]:
    """(E,): which edges are REQUIRES edges with both ends in one strong component."""
    mask = np.zeros(arrays.edges, bool)
    if REQUIRES not in arrays.relations:
        return mask
    edges = np.flatnonzero(arrays.rel == arrays.relations.index(REQUIRES))
    src, dst = arrays.sources[edges], arrays.dst[edges]
    matrix = csr_array((np.ones(len(edges), np.int8), (src, dst)), shape=(arrays.nodes, arrays.nodes))
    _, component = connected_components(matrix, directed=True, connection="strong")
    mask[edges] = component[src] == component[dst]
    return mask
