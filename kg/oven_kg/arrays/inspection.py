"""Summarise a large graph, find its faults, and remove its cycles of requirements."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import connected_components

from oven_kg.arrays.array_builder import Builder
from oven_kg.arrays.graph_arrays import GraphArrays

REQUIRES: Final = "REQUIRES"
"""Relation from a topic to its prerequisite. These edges must not form a cycle."""
MAX_ISOLATED_SHARE: Final = 0.5
"""Maximum share of nodes without edges. Above it, a graph is little more than a list of labels."""
MAX_CYCLE_NODES: Final = 6
"""Maximum number of nodes of a cycle in an error message."""


@dataclass(frozen=True, slots=True)
class Summary:
    """Counts and properties of a graph."""

    graph: str
    """SHA-256 of the content."""
    nodes: dict[str, int]
    """Number of nodes per kind. "" is for nodes without a kind."""
    edges: dict[str, int]
    """Number of edges per relation."""
    isolated: float
    """Share of nodes without edges."""
    licence: str
    """The licence, or an empty string if it is unknown."""


def summary(arrays: GraphArrays) -> Summary:
    """Count the nodes by kind and the edges by relation."""
    kinds = np.bincount(arrays.kinds, minlength=len(arrays.kind_names)).tolist()
    relations = np.bincount(arrays.rel, minlength=len(arrays.relations)).tolist()
    return Summary(
        graph=arrays.sha,
        nodes={name: count for name, count in zip(arrays.kind_names, kinds, strict=True) if count},
        edges={name: count for name, count in zip(arrays.relations, relations, strict=True) if count},
        isolated=arrays.isolated / max(1, arrays.nodes),
        licence=arrays.licence,
    )


def find_faults(arrays: GraphArrays) -> list[str]:
    """Return one sentence per fault, or an empty list for a valid graph."""
    faults = []
    if cycle := find_cycle(arrays):
        faults.append(
            f"REQUIRES edges form a cycle: {cycle_text(arrays, cycle)}; `kg import --cut-cycles` skips these edges"
        )
    if "CONTRADICTS" in arrays.relations:
        loops = (arrays.rel == arrays.relations.index("CONTRADICTS")) & (arrays.dst == arrays.sources)
        faults += [f"{arrays.name(node)!r} contradicts itself" for node in arrays.dst[loops].tolist()]
    if arrays.isolated > MAX_ISOLATED_SHARE * arrays.nodes:
        faults.append(f"{arrays.isolated:,} of {arrays.nodes:,} nodes have no edges, so they are only labels")
    return faults


def cycle_text(arrays: GraphArrays, nodes: list[int]) -> str:
    """Return the names of a cycle's nodes, joined by arrows. A long cycle is truncated."""
    return " → ".join(arrays.names(nodes[:MAX_CYCLE_NODES])) + (" → …" if len(nodes) > MAX_CYCLE_NODES else "")


def find_cycle(arrays: GraphArrays) -> list[int] | None:
    """Return the nodes of one cycle, with the first one repeated at the end, or None if there is no cycle."""
    edges = np.flatnonzero(_cycle_mask(arrays))
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


def remove_cycles(arrays: GraphArrays) -> tuple[GraphArrays, int]:
    """Return the graph without the REQUIRES edges on cycles, and the number of removed edges."""
    on_cycle = _cycle_mask(arrays)
    builder = Builder()
    builder.declare(arrays.names(range(arrays.nodes)), [arrays.kind_names[kind] for kind in arrays.kinds.tolist()])
    edges = np.flatnonzero(~on_cycle)
    relations = builder.relation_numbers(arrays.relations)[arrays.rel[edges]]
    builder.add_numbered_edges(arrays.sources[edges], relations, arrays.dst[edges], arrays.weight[edges])
    return builder.finish(licence=arrays.licence), int(on_cycle.sum())


def _cycle_mask(arrays: GraphArrays) -> NDArray[np.bool_]:
    """Return a mask, (E,), of the REQUIRES edges with both ends in one strongly connected component."""
    mask = np.zeros(arrays.edges, bool)
    if REQUIRES not in arrays.relations:
        return mask
    edges = np.flatnonzero(arrays.rel == arrays.relations.index(REQUIRES))
    src, dst = arrays.sources[edges], arrays.dst[edges]
    matrix = csr_array((np.ones(len(edges), np.int8), (src, dst)), shape=(arrays.nodes, arrays.nodes))
    _, component = connected_components(matrix, directed=True, connection="strong")
    mask[edges] = component[src] == component[dst]
    return mask
