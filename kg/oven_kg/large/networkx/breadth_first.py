"""Breadth-first functions of networkx by its names and signatures, over `graph.csr`.

What only arranges the answers of another function here is networkx's own (`orig_func`): it calls that function by
networkx's dispatch, which comes back here.
"""

from __future__ import annotations

from collections.abc import Callable, Hashable, Iterable, Iterator
from typing import Any

import networkx as nx

from oven_kg.large.networkx.csr import Csr
from oven_kg.large.networkx.own import networkx_own
from oven_kg.large.networkx.search import levels

bfs_tree = networkx_own(nx.bfs_tree)
bfs_predecessors = networkx_own(nx.bfs_predecessors)
bfs_successors = networkx_own(nx.bfs_successors)
descendants_at_distance = networkx_own(nx.descendants_at_distance)


def generic_bfs_edges(
    G: Any,
    source: Hashable,
    neighbors: Callable[[Any], Iterable[Any]] | None = None,
    depth_limit: float | None = None,
) -> Iterator[tuple[Any, Any]]:
    """Edges of the search tree from `source`. `neighbors`, where given, is asked for the nodes after each."""
    if neighbors is None:
        return bfs_edges(G, source, depth_limit=depth_limit)
    edges: Iterator[tuple[Any, Any]] = nx.generic_bfs_edges.orig_func(G, source, neighbors, depth_limit)
    return edges


def bfs_edges(
    G: Any,
    source: Hashable,
    reverse: bool = False,
    depth_limit: float | None = None,
    sort_neighbors: Callable[[Iterable[Any]], Iterable[Any]] | None = None,
) -> Iterator[tuple[Any, Any]]:
    """Edges of the search tree from `source`, along the edges, or against them."""
    backwards = reverse and G.is_directed()
    if sort_neighbors is not None:
        after = G.predecessors if backwards else G.neighbors
        yield from generic_bfs_edges(G, source, lambda node: iter(sort_neighbors(after(node))), depth_limit)
        return
    csr: Csr = G.csr
    start = _known(csr, source)
    limit = len(csr) if depth_limit is None else depth_limit
    for children, parents in levels(csr.rows(backwards=backwards), len(csr), [start], limit):
        if parents[0] >= 0:
            yield from zip(csr.labels.decode(parents), csr.labels.decode(children), strict=True)


def _known(csr: Csr, node: Hashable) -> int:
    try:
        return csr.labels.index(node)
    except KeyError:
        raise nx.NetworkXError(f"The node {node} is not in the {'digraph' if csr.directed else 'graph'}.") from None


def bfs_layers(G: Any, sources: Any) -> Iterator[list[Any]]:
    """Nodes by their distance from `sources`, a node or several; the layer of the sources first."""
    first = list(dict.fromkeys([sources] if sources in G else sources))
    csr: Csr = G.csr
    for source in first:
        if source not in G:
            raise nx.NetworkXError(f"The node {source} is not in the graph.")
    for layer, _ in levels(csr.out, len(csr), [csr.labels.index(source) for source in first]):
        if len(layer):
            yield csr.labels.decode(layer)


def descendants(G: Any, source: Hashable) -> set[Any]:
    """Nodes that can be reached from `source`, itself not among them."""
    return _reached(G, source, backwards=False)


def ancestors(G: Any, source: Hashable) -> set[Any]:
    """Nodes from which `source` can be reached, itself not among them."""
    return _reached(G, source, backwards=G.is_directed())


def _reached(G: Any, source: Hashable, *, backwards: bool) -> set[Any]:
    csr: Csr = G.csr
    found: set[Any] = set()
    for level, parents in levels(csr.rows(backwards=backwards), len(csr), [_known(csr, source)]):
        if parents[0] >= 0:
            found.update(csr.labels.decode(level))
    return found
