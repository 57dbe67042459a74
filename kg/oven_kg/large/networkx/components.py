"""Components by networkx's names and signatures, over `graph.csr`; found by scipy."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any, Literal

import networkx as nx
import numpy as np
from scipy import sparse

from oven_kg.large.networkx.csr import Csr, Integers
from oven_kg.large.networkx.search import levels


def _labelled(csr: Csr, connection: Literal["weak", "strong"]) -> tuple[int, Integers]:
    """How many components there are, and the one that each node is in.

    scipy numbers strong components as its depth-first search ends them, with the last neighbour visited first: over
    rows that are turned round the order is networkx's.
    """
    if len(csr) == 0:
        return 0, np.empty(0, np.int32)
    indptr, ends, _ = csr.lightest(None)  # scipy's search for strong ones does not end on parallel edges
    if connection == "strong":
        ends = ends[np.repeat(indptr[:-1] + indptr[1:] - 1, np.diff(indptr)) - np.arange(len(ends))]
    matrix = sparse.csr_array((np.ones(len(ends)), ends, indptr.astype(np.int32)), (len(csr), len(csr)))
    found, labels = sparse.csgraph.connected_components(matrix, directed=True, connection=connection)
    return int(found), labels


def _sets(csr: Csr, labels: Integers) -> Iterator[set[Any]]:
    """The nodes of each component, in the order of their numbers."""
    order = np.argsort(labels, kind="stable")
    starts = np.flatnonzero(np.concatenate([[True], np.diff(labels[order]) != 0]))[: len(order)]
    for group in np.split(order, starts[1:]) if len(order) else ():
        yield set(csr.labels.decode(group))


def _connected(csr: Csr, connection: Literal["weak", "strong"]) -> bool:
    if len(csr) == 0:
        raise nx.NetworkXPointlessConcept("Connectivity is undefined for the null graph.")
    return _labelled(csr, connection)[0] == 1


def connected_components(G: Any) -> Iterator[set[Any]]:
    """Components of an undirected graph."""
    return _sets(G.csr, _labelled(G.csr, "weak")[1])


def number_connected_components(G: Any) -> int:
    """Of an undirected graph."""
    return _labelled(G.csr, "weak")[0]


def is_connected(G: Any) -> bool:
    """Whether an undirected graph is in one piece. Raises NetworkXPointlessConcept for one without nodes."""
    return _connected(G.csr, "weak")


def node_connected_component(G: Any, n: Hashable) -> set[Any]:
    """The nodes that are connected with `n` in an undirected graph."""
    csr: Csr = G.csr
    found: set[Any] = set()
    for level, _ in levels(csr.out, len(csr), [csr.labels.index(n)]):
        found.update(csr.labels.decode(level))
    return found


def weakly_connected_components(G: Any) -> Iterator[set[Any]]:
    """Components of a directed graph, whichever way its edges point."""
    return _sets(G.csr, _labelled(G.csr, "weak")[1])


def number_weakly_connected_components(G: Any) -> int:
    """Of a directed graph."""
    return _labelled(G.csr, "weak")[0]


def is_weakly_connected(G: Any) -> bool:
    """Whether a directed graph is in one piece. Raises NetworkXPointlessConcept for one without nodes."""
    return _connected(G.csr, "weak")


def strongly_connected_components(G: Any) -> Iterator[set[Any]]:
    """Sets of nodes of which each leads to each other; before them those that they lead to."""
    return _sets(G.csr, _labelled(G.csr, "strong")[1])


def number_strongly_connected_components(G: Any) -> int:
    """Of a directed graph."""
    return _labelled(G.csr, "strong")[0]


def is_strongly_connected(G: Any) -> bool:
    """Whether each node leads to each other. Raises NetworkXPointlessConcept for a graph without nodes."""
    return _connected(G.csr, "strong")
