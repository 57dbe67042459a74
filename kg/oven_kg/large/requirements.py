"""Requirements of a graph: whatever needs something comes after it, so that they must not go in a circle."""

from __future__ import annotations

from typing import Final

import numpy as np
from numpy.typing import NDArray

from oven_kg.large.arrays import Arrays
from oven_kg.large.builder import Builder

REQUIRES: Final = "REQUIRES"


def cycle(arrays: Arrays) -> list[int] | None:
    """The nodes of a circle of requirements, of which the first comes again at the end; None if there is none."""
    on_cycle = np.flatnonzero(_on_cycle(arrays))
    if not len(on_cycle):
        return None
    after = dict(zip(arrays.sources[on_cycle].tolist(), arrays.dst[on_cycle].tolist(), strict=True))
    # Within a strong component every node has an edge out, so that going on must come back.
    way: dict[int, None] = {}
    node = int(arrays.sources[on_cycle[0]])
    while node not in way:
        way[node] = None
        node = after[node]
    nodes = list(way)
    return [*nodes[nodes.index(node) :], node]


def without_cycles(arrays: Arrays) -> tuple[Arrays, int]:
    """The graph without the requirements within a circle, and how many those were."""
    on_cycle = _on_cycle(arrays)
    kept = ~on_cycle
    builder = Builder()
    names = arrays.names(range(arrays.nodes))
    builder.declare(names, [arrays.kind_names[kind] for kind in arrays.kinds.tolist()])
    relations = builder.relation_numbers(arrays.relations)
    builder.numbered_edges(arrays.sources[kept], relations[arrays.rel[kept]], arrays.dst[kept], arrays.weight[kept])
    return builder.finish(licence=arrays.licence), int(on_cycle.sum())


def _on_cycle(arrays: Arrays) -> NDArray[np.bool_]:
    """Which edges are requirements whose both ends are in one strong component."""
    mask = np.zeros(arrays.edges, bool)
    if REQUIRES not in arrays.relations:
        return mask
    from scipy.sparse import csr_array
    from scipy.sparse.csgraph import connected_components

    edges = np.flatnonzero(arrays.rel == arrays.relations.index(REQUIRES))
    src, dst = arrays.sources[edges], arrays.dst[edges]
    matrix = csr_array((np.ones(len(edges), np.int8), (src, dst)), shape=(arrays.nodes, arrays.nodes))
    _, component = connected_components(matrix, directed=True, connection="strong")
    mask[edges] = component[src] == component[dst]
    return mask
