"""Find neighbourhoods and shortest paths in a large graph.

The direction "out" follows edges forwards, "in" follows them backwards, and "both" does either. `relations` are
positions in `GraphArrays.relations`. None means all of them.
"""

from __future__ import annotations

from collections.abc import Collection
from typing import Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy.sparse import csr_array
from scipy.sparse.csgraph import breadth_first_order

from oven_kg.arrays.graph_arrays import GraphArrays, membership, row_positions

Direction: TypeAlias = Literal["out", "in", "both"]
Nodes: TypeAlias = NDArray[np.int32]


def nodes_within(
    arrays: GraphArrays,
    start: int,
    depth: int,
    direction: Direction = "out",
    relations: Collection[int] | None = None,
    *,
    min_nodes: int | None = None,
) -> tuple[Nodes, Nodes]:
    """Return the nodes at most `depth` edges from `start`, without `start`, and each node's distance, sorted by
    distance and number. With `min_nodes`, the search stops at the distance where it has found that many nodes."""
    levels: list[Nodes] = []
    visited = frontier = np.array([start], np.int32)
    while len(levels) < depth and len(frontier) and (min_nodes is None or len(visited) <= min_nodes):
        ends = np.unique(_edge_ends(arrays, frontier, direction, relations))
        frontier = ends[~membership(ends, visited)]
        visited = np.sort(np.concatenate([visited, frontier]))
        levels.append(frontier)
    distances = np.repeat(np.arange(1, len(levels) + 1, dtype=np.int32), [len(level) for level in levels])
    return np.concatenate([*levels, visited[:0]]), distances  # concatenate needs at least one array


def shortest_path(
    arrays: GraphArrays, start: int, end: int, direction: Direction = "out", relations: Collection[int] | None = None
) -> list[int]:
    """Return the nodes of a path with the fewest edges, including both ends, or an empty list if there is no path."""
    if start == end:
        return [start]
    matrix = _adjacency_matrix(arrays, "in" if direction == "in" else "out", relations)
    _, predecessors = breadth_first_order(matrix, start, directed=direction != "both")
    path = [end]
    while path[-1] != start:
        if (predecessor := int(predecessors[path[-1]])) < 0:
            return []
        path.append(predecessor)
    return path[::-1]


def _adjacency_matrix(
    arrays: GraphArrays, direction: Literal["out", "in"], relations: Collection[int] | None
) -> csr_array:
    """Return the adjacency matrix, (N, N): row i has an entry for each node to which an edge from node i leads."""
    indptr, ends, rel = _edge_arrays(arrays, direction)
    if relations is not None:
        mask = np.isin(rel, list(relations))
        selected_before = np.concatenate([[0], np.cumsum(mask)])  # number of selected edges before each position
        indptr, ends = selected_before[indptr], ends[mask]
    return csr_array((np.ones(len(ends)), ends, indptr.astype(np.int32)), shape=(arrays.nodes, arrays.nodes))


def _edge_ends(arrays: GraphArrays, nodes: Nodes, direction: Direction, relations: Collection[int] | None) -> Nodes:
    """Return the other end of each edge of some nodes. A node appears once per edge."""
    if direction == "both":
        forward, backward = (_edge_ends(arrays, nodes, one_way, relations) for one_way in ("out", "in"))
        return np.concatenate([forward, backward])
    indptr, ends, rel = _edge_arrays(arrays, direction)
    positions, _ = row_positions(indptr, nodes)
    return ends[positions] if relations is None else ends[positions[np.isin(rel[positions], list(relations))]]


def _edge_arrays(
    arrays: GraphArrays, direction: Literal["out", "in"]
) -> tuple[NDArray[np.int64], Nodes, NDArray[np.int16]]:
    if direction == "out":
        return arrays.indptr, arrays.dst, arrays.rel
    return arrays.in_indptr, arrays.in_src, arrays.in_rel
