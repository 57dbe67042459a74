"""PageRank by networkx's name and signature, over `graph.csr`."""

from __future__ import annotations

from collections.abc import Hashable, Mapping
from typing import Any

import networkx as nx
import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from oven_kg.large.networkx.csr import Csr
from oven_kg.large.networkx.own import refuse

Vector = NDArray[np.float64]


def pagerank(
    G: Any,
    alpha: float = 0.85,
    personalization: Mapping[Any, float] | None = None,
    max_iter: int = 100,
    tol: float = 1.0e-6,
    nstart: Mapping[Any, float] | None = None,
    weight: Hashable = "weight",
    dangling: Mapping[Any, float] | None = None,
) -> dict[Any, float]:
    """Node → rank; they sum to 1. The iteration ends when the ranks change by less than `tol` in all: networkx's ends
    at `tol` times the number of nodes, which for a large graph says nothing. They are off by at most
    alpha / (1 − alpha) × tol then. Raises PowerIterationFailedConvergence.
    """
    refuse(weight)
    csr: Csr = G.csr
    if len(csr) == 0:
        return {}
    into, totals = _into(csr, weight)
    share = np.divide(1.0, totals, out=np.zeros_like(totals), where=totals != 0)
    stuck = np.flatnonzero(totals == 0)
    uniform = np.full(len(csr), 1.0 / len(csr))
    restart = uniform if personalization is None else _distribution(csr, personalization)
    after_stuck = restart if dangling is None else _distribution(csr, dangling)
    ranks = uniform if nstart is None else _distribution(csr, nstart)
    for _ in range(max_iter):
        before = ranks
        ranks = alpha * (into @ (before * share) + before[stuck].sum() * after_stuck) + (1 - alpha) * restart
        if np.abs(ranks - before).sum() < tol:
            return dict(zip(csr.labels.decode(range(len(csr))), ranks.tolist(), strict=True))
    raise nx.PowerIterationFailedConvergence(max_iter)


def _into(csr: Csr, weight: Hashable) -> tuple[sparse.csr_array, Vector]:
    """(N, N): row i has the weights of the edges into i, and (N,) the sums of the weights out; kept for the next
    call."""
    found: tuple[sparse.csr_array, Vector] | None = csr.walks.get(weight)
    if found is None:
        values, rows, shape = csr.values(weight).astype(np.float64), csr.into, (len(csr), len(csr))
        out = sparse.csr_array((values, csr.out.ends, csr.out.indptr.astype(np.int32)), shape)
        along = values if csr.into_edges is None else values[csr.into_edges]
        into = sparse.csr_array((along, rows.ends, rows.indptr.astype(np.int32)), shape)
        found = csr.walks[weight] = into, out @ np.ones(len(csr))
    return found


def _distribution(csr: Csr, masses: Mapping[Any, float]) -> Vector:
    """(N,), with the sum 1. Nodes that are not in the graph count for nothing, as in networkx. Raises
    ZeroDivisionError where all do."""
    found: Vector = np.zeros(len(csr))
    for node, mass in masses.items():
        try:
            found[csr.labels.index(node)] = mass
        except KeyError:
            continue
    if found.sum() == 0:
        raise ZeroDivisionError("a distribution over the graph's nodes has the sum 0")
    found /= found.sum()
    return found
