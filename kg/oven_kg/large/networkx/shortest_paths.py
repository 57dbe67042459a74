"""networkx's functions that choose between the ways to find a shortest path, over `graph.csr`."""

from __future__ import annotations

from collections.abc import Hashable
from typing import Any, Final

import networkx as nx

from oven_kg.large.networkx.own import networkx_own, refuse
from oven_kg.large.networkx.search import levels, within
from oven_kg.large.networkx.unweighted import known, single_target_shortest_path, single_target_shortest_path_length
from oven_kg.large.networkx.weighted import distances, paths_to

has_path = networkx_own(nx.has_path)
all_shortest_paths = networkx_own(nx.all_shortest_paths)
single_source_all_shortest_paths = networkx_own(nx.single_source_all_shortest_paths)
average_shortest_path_length = networkx_own(nx.average_shortest_path_length)

METHODS: Final = ("dijkstra", "bellman-ford")
"""Names of methods that networkx takes: it says what is wrong with another."""


def shortest_path(
    G: Any,
    source: Hashable | None = None,
    target: Hashable | None = None,
    weight: Hashable = None,
    method: str = "dijkstra",
) -> Any:
    """A path from `source` to `target`; of one of them alone, node → path; of neither, pairs of node and those."""
    refuse(weight, method)
    if source is not None or target is None or method not in METHODS:
        return nx.shortest_path.orig_func(G, source, target, weight, method)
    if weight is None:
        return single_target_shortest_path(G, target)
    return paths_to(G.csr, known(G.csr, target, f"Node {target} not found in graph"), weight)


def shortest_path_length(
    G: Any,
    source: Hashable | None = None,
    target: Hashable | None = None,
    weight: Hashable = None,
    method: str = "dijkstra",
) -> Any:
    """The length of a path from `source` to `target`; of one of them alone, node → length; of neither, pairs of node
    and those."""
    refuse(weight, method)
    if source is not None or target is None or method not in METHODS:
        return nx.shortest_path_length.orig_func(G, source, target, weight, method)
    if weight is None:
        return single_target_shortest_path_length(G, target)
    end = known(G.csr, target, f"Node {target} not found in graph")
    return distances(G.csr, [end], None, weight, backwards=True)


def ego_graph(
    G: Any,
    n: Hashable,
    radius: float = 1,
    center: bool = True,
    undirected: bool = False,
    distance: Hashable = None,
) -> Any:
    """The graph between the nodes within `radius` of `n`, a copy in networkx's class."""
    refuse(distance)
    csr = G.csr
    start = known(csr, n, f"Source {n} is not in G" if distance is None else f"Node {n} not found in graph")
    if distance is None:
        both = undirected and G.is_directed()
        found = (
            within(csr, start, radius)
            if both
            else [node for level, _ in levels(csr.out, len(csr), [start], radius) for node in level.tolist()]
        )
    elif undirected and G.is_directed():
        raise NotImplementedError("oven_csr measures distances along the edges' direction; leave undirected= out")
    else:
        found = [csr.labels.index(node) for node in distances(csr, [start], radius, distance)]
    part = G.part(found)
    if not center:
        part.remove_node(n)
    return part
