"""Degrees by networkx's names and signatures, counted from the offsets of `graph.csr`."""

from __future__ import annotations

from collections.abc import Hashable, Iterator
from typing import Any

import networkx as nx
import numpy as np

from oven_kg.large.networkx.csr import Csr, Integers


def _degrees(csr: Csr) -> Integers:
    """Edges at each node; one to itself counts twice."""
    out = np.diff(csr.out.indptr)
    return out + (np.diff(csr.into.indptr) if csr.directed else csr.loops())


def _centrality(csr: Csr, degrees: Integers) -> dict[Any, float]:
    names = csr.labels.decode(range(len(csr)))
    if len(csr) <= 1:
        return dict.fromkeys(names, 1)
    scale = 1.0 / (len(csr) - 1.0)
    return {name: degree * scale for name, degree in zip(names, degrees.tolist(), strict=True)}


def degree_centrality(G: Any) -> dict[Any, float]:
    """Node → degree, as a share of the other nodes."""
    return _centrality(G.csr, _degrees(G.csr))


def in_degree_centrality(G: Any) -> dict[Any, float]:
    """Node → edges in, as a share of the other nodes."""
    return _centrality(G.csr, np.diff(G.csr.into.indptr))


def out_degree_centrality(G: Any) -> dict[Any, float]:
    """Node → edges out, as a share of the other nodes."""
    return _centrality(G.csr, np.diff(G.csr.out.indptr))


def isolates(G: Any) -> Iterator[Any]:
    """Nodes without an edge."""
    csr: Csr = G.csr
    return iter(csr.labels.decode(np.flatnonzero(_degrees(csr) == 0)))


def is_isolate(G: Any, n: Hashable) -> bool:
    """Whether a node has no edge. Raises NetworkXError for one that is not in the graph."""
    csr: Csr = G.csr
    try:
        at = csr.labels.index(n)
    except KeyError:
        raise nx.NetworkXError(f"Node {n} is not in the graph.") from None
    return all(rows.indptr[at] == rows.indptr[at + 1] for rows in (csr.out, csr.into))


def number_of_isolates(G: Any) -> int:
    """How many nodes have no edge."""
    return int(np.count_nonzero(_degrees(G.csr) == 0))
