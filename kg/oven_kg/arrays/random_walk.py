"""PageRank of a large graph: of all nodes by power iteration, and of the nodes near one node by forward push."""

from __future__ import annotations

from functools import cached_property
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from oven_kg.arrays.graph_arrays import GraphArrays, row_positions

Values: TypeAlias = NDArray[np.float64]

DAMPING: Final = 0.85
"""Probability that the walk follows another edge (Page et al. 1999)."""
ACCURACY: Final = 1e-9
"""Maximum sum of absolute errors of the ranks, which sum to 1."""
RESIDUE: Final = 5e-5
"""Minimum probability mass per edge at which a node passes its mass on to its neighbours. It bounds the work in any
graph to 1 / (RESIDUE × (1 − DAMPING)) = 133,000 edges, about 8 ms."""


def pagerank(matrix: sparse.csr_array, restart: Values | None = None, *, accuracy: float = ACCURACY) -> Values:
    """Return each node's share of a random walk's time, (N,), with a sum of 1. Row i of `matrix`, (N, N), has the
    weights of the edges into node i. `restart`, (N,), is the probability of restarting at each node (default: uniform).
    The walk also restarts when it reaches a node without outgoing weight."""
    count = matrix.shape[0]
    if not count:
        return np.empty(0)
    restart_shares = np.full(count, 1 / count) if restart is None else restart
    matrix = matrix.astype(np.float64)
    outgoing_weight = np.asarray(matrix.sum(axis=0))
    inverse_weight = _inverse(outgoing_weight)
    dead_ends = np.flatnonzero(outgoing_weight == 0)
    ranks, change = restart_shares, 1.0
    # An iteration shrinks the distance to the true ranks by the damping, so its change bounds the remaining distance.
    while change * DAMPING > accuracy * (1 - DAMPING):
        new_ranks = DAMPING * (matrix @ (ranks * inverse_weight))
        new_ranks += (1 - DAMPING + DAMPING * ranks[dead_ends].sum()) * restart_shares
        change, ranks = float(np.abs(new_ranks - ranks).sum()), new_ranks
    return ranks


class RandomWalk:
    """A random walk along a graph's edges, in proportion to their weights. The weights of several edges between two
    nodes add up. The walk uses 40 bytes per node and none per edge."""

    def __init__(self, arrays: GraphArrays) -> None:
        self.arrays = arrays

    def ranks(self, restart: Values | None = None, *, accuracy: float = ACCURACY) -> Values:
        """Return the PageRank of all nodes, (N,). `restart` and `accuracy` are the same as in `pagerank`."""
        return pagerank(self._incoming_weights, restart, accuracy=accuracy)

    def nearest(
        self, start: int, count: int, *, undirected: bool = False, residue: float = RESIDUE
    ) -> tuple[NDArray[np.int32], Values]:
        """Return the `count` nodes where a walk that restarts at `start` spends the most time, and their shares,
        descending. Uses forward push (Andersen, Chung & Lang 2006) on many nodes at a time. `undirected` follows edges
        both ways. The remaining mass is distributed as in a walk from a random node, to rank hubs well."""
        shares, mass = np.zeros(self.arrays.nodes), np.zeros(self.arrays.nodes)
        scratch = np.empty(self.arrays.nodes, np.int32)
        frontier = np.array([start], np.int32)
        mass[start] = 1
        inverse_weights, uniform_shares, degrees = self._undirected_factors if undirected else self._outgoing_factors
        reached_nodes = [frontier]
        while len(frontier):
            pushed_mass = mass[frontier]
            mass[frontier] = 0
            shares[frontier] += (1 - DAMPING) * pushed_mass
            factors = inverse_weights[frontier]
            end_nodes = self._push(frontier, DAMPING * pushed_mass * factors, mass, undirected)
            if lost_mass := DAMPING * float(pushed_mass[factors == 0].sum()):
                mass[start] += lost_mass
                end_nodes = np.append(end_nodes, np.int32(start))
            reached_nodes.append(end_nodes)
            frontier = _distinct(end_nodes[mass[end_nodes] > residue * degrees[end_nodes]], scratch)
        nodes = _distinct(np.concatenate(reached_nodes), scratch)
        remaining_mass = mass[nodes]
        time_shares = (
            shares[nodes] + (1 - DAMPING) * remaining_mass + DAMPING * remaining_mass.sum() * uniform_shares[nodes]
        )
        if len(nodes) > count:
            is_largest = time_shares >= np.partition(time_shares, -count)[-count]
            nodes, time_shares = nodes[is_largest], time_shares[is_largest]
        order = np.lexsort((nodes, -time_shares))[:count]
        return nodes[order], time_shares[order]

    def _push(
        self, nodes: NDArray[np.int32], mass_per_weight: Values, mass: Values, undirected: bool
    ) -> NDArray[np.int32]:
        """Add to `mass` the mass that flows along each edge of the nodes. Return the ends of these edges."""
        arrays, end_nodes = self.arrays, []
        directions = [(arrays.indptr, arrays.dst, arrays.weight)]
        if undirected:
            directions.append((arrays.in_indptr, arrays.in_src, arrays.in_weight))
        for indptr, ends, weights in directions:
            positions, counts = row_positions(indptr, nodes)
            end_nodes.append(ends[positions])
            np.add.at(mass, end_nodes[-1], np.repeat(mass_per_weight, counts) * weights[positions])
        return np.concatenate(end_nodes)

    @cached_property
    def _incoming_weights(self) -> sparse.csr_array:
        arrays, count = self.arrays, self.arrays.nodes
        return sparse.csr_array(
            (arrays.in_weight, arrays.in_src, arrays.in_indptr.astype(np.int32)), shape=(count, count)
        )

    @cached_property
    def _outgoing_factors(self) -> tuple[Values, Values, Values]:
        """Return 1 / outgoing weight, shares after one step from a random node, and out-degrees (at least 1), (N,)."""
        inverse_weights = _inverse(_row_sums(self.arrays.indptr, self.arrays.weight))
        spread = np.asarray(self._incoming_weights @ inverse_weights)
        degrees = np.maximum(np.diff(self.arrays.indptr), 1).astype(np.float64)
        return inverse_weights, spread / max(spread.sum(), 1e-300), degrees

    @cached_property
    def _undirected_factors(self) -> tuple[Values, Values, Values]:
        """Return the same for a walk in both directions. Its long-run shares are proportional to the nodes' weights."""
        arrays = self.arrays
        outgoing_weight = _row_sums(arrays.indptr, arrays.weight) + _row_sums(arrays.in_indptr, arrays.in_weight)
        degrees = np.maximum(np.diff(arrays.indptr) + np.diff(arrays.in_indptr), 1).astype(np.float64)
        return _inverse(outgoing_weight), outgoing_weight / max(outgoing_weight.sum(), 1e-300), degrees


def _row_sums(indptr: NDArray[np.int64], weights: NDArray[np.float32]) -> Values:
    """Return the sum of each row's weights, (N,)."""
    sums, nonempty_rows = np.zeros(len(indptr) - 1), np.flatnonzero(np.diff(indptr))
    if len(nonempty_rows):
        sums[nonempty_rows] = np.add.reduceat(weights, indptr[nonempty_rows], dtype=np.float64)
    return sums


def _inverse(values: Values) -> Values:
    """Return 1 / value for each value above 0, otherwise 0."""
    return np.divide(1.0, values, out=np.zeros_like(values), where=values > 0)


def _distinct(nodes: NDArray[np.int32], scratch: NDArray[np.int32]) -> NDArray[np.int32]:
    """Return distinct nodes without sorting: of equal nodes, the last write to `scratch`, (N,), wins."""
    positions = np.arange(len(nodes), dtype=np.int32)
    scratch[nodes] = positions
    distinct: NDArray[np.int32] = nodes[scratch[nodes] == positions]
    return distinct
