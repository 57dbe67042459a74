"""PageRank over arrays: by power iteration to an accuracy that is stated, and near a node by forward push.

networkx and rustworkx stop when an iteration moves less than N × tol, which for half a million nodes and the default is
half of all the mass (their ranks were off by 0.1 to 0.9). Here the accuracy is a bound on the distance to the true
ranks, as the sum of absolute differences.
"""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from functools import cached_property
from itertools import pairwise
from typing import Final, TypeAlias

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from oven_kg.large.arrays import Arrays, row_positions

Values: TypeAlias = NDArray[np.float64]

DAMPING: Final = 0.85
"""Probability with which the walk follows another edge (Page et al. 1999)."""
ACCURACY: Final = 1e-9
"""The most that the ranks are off, in all; they sum to 1."""
SINGLE: Final = 1e-6
"""To how much, in all, ranks are worked out in single precision, before they are refined."""
PARTS: Final = 16
"""In which the rows are worked out one after another: with 1, 4, 16 and 32 of them a graph of three million edges took
21, 15, 13 and 13 rounds."""
RESIDUE: Final = 5e-5
"""Mass, per edge of a node, from which a push hands it on. It bounds the work, whatever the graph, to 1 / (RESIDUE ×
(1 − DAMPING)) = 133,000 edges, some 8 ms; at 2e-5 the first 20 were no better."""


class RandomWalk:
    """The walk along a graph's edges, in proportion to their weights. It is made once and asked often, and takes 40
    bytes for a node and none for an edge.

    `weighted`: if not, each edge counts alike. Edges of different relations between two nodes add up. From a node
    without an edge to follow, or with edges of weight 0 only, the walk goes where it restarts.
    """

    def __init__(self, arrays: Arrays, *, weighted: bool = True, damping: float = DAMPING) -> None:
        """`damping`: from 0 to below 1."""
        if not 0 <= damping < 1:
            raise ValueError(f"the damping is {damping}; it has to be from 0 to below 1")
        self.arrays = arrays
        self._weighted = weighted
        self._damping = damping

    def ranks(
        self, restart: Values | None = None, *, accuracy: float = ACCURACY, dangling: Values | None = None
    ) -> Values:
        """(N,): the share of its time that the walk spends at each node.

        `restart`: (N,), where it begins anew, in proportion; anywhere if None. `dangling`: (N,), where it goes from a
        node without an edge to follow; as `restart` if None. `accuracy`: above 0, at most 1. Raises ValueError for
        proportions that no walk can have, and for weights too small for single precision.
        """
        if not 0 < accuracy <= 1:
            raise ValueError(f"the accuracy is {accuracy}; it has to be above 0, and at most 1")
        if not self.arrays.nodes:
            return np.empty(0)
        begin = self._shares(restart)
        lost_to = begin if dangling is None else self._shares(dangling)
        order, single = self._by_edges_in()
        walk = _Steps(
            single, self._per_weight[order], self._damping, _in_order(begin, order), _in_order(lost_to, order)
        )
        ranks = np.empty(self.arrays.nodes)
        ranks[order] = walk.ranks(accuracy)
        return ranks

    def _by_edges_in(self) -> tuple[NDArray[np.int64], sparse.csr_array]:
        """The nodes by their edges in, descending, and the edges into them: rows and columns in that order. Rows of one
        length beside each other are multiplied in two thirds of the time; this costs as much as four products save."""
        held, count = self._into, self.arrays.nodes
        degrees = np.minimum(np.diff(held.indptr), np.iinfo(np.uint16).max).astype(np.uint16)  # of 16 bits: radix sort
        order = np.argsort(degrees, kind="stable")[::-1]
        places = np.empty(count, np.int32)
        places[order] = np.arange(count, dtype=np.int32)
        rows = held[order]
        return order, sparse.csr_array((rows.data, places[rows.indices], rows.indptr), shape=(count, count))

    def near(
        self, starts: Sequence[int], count: int, *, both: bool = False, residue: float = RESIDUE
    ) -> tuple[NDArray[np.int32], Values]:
        """The `count` nodes at which a walk that restarts at `starts` is most, and its share of time there, descending.

        By forward push (Andersen, Chung & Lang 2006) in rounds. `both`: along edges in both directions. What was not
        handed on is laid where a walk from anywhere goes, which is what puts the hubs in their places: without it the
        first 20 agreed with the exact ones in 97 %, with it in 99 %.
        """
        held, damping = self.arrays, self._damping
        shares, waiting = np.zeros(held.nodes), np.zeros(held.nodes)
        mark = np.empty(held.nodes, np.int32)
        begin = _distinct(np.asarray(starts, np.int32), mark)
        waiting[begin] = 1 / len(begin)
        per_weight, anywhere, limits = self._pushing(both)
        now, seen = begin, [begin]
        while len(now):
            mass = waiting[now]
            waiting[now] = 0
            shares[now] += (1 - damping) * mass
            factors = per_weight[now]
            reached = self._hand_on(now, damping * mass * factors, waiting, both)
            if lost := damping * float(mass[factors == 0].sum()):
                waiting[begin] += lost / len(begin)
                reached = np.concatenate([reached, begin])
            seen.append(reached)
            now = _distinct(reached[waiting[reached] > residue * limits[reached]], mark)
        nodes = _distinct(np.concatenate(seen), mark)
        left = waiting[nodes]
        found = shares[nodes] + (1 - damping) * left + damping * left.sum() * anywhere[nodes]
        best = np.lexsort((nodes, -found)) if len(nodes) <= count else _largest(found, nodes, count)
        return nodes[best], found[best]

    def _hand_on(self, nodes: NDArray[np.int32], mass: Values, waiting: Values, both: bool) -> NDArray[np.int32]:
        """Add to `waiting` the share of each edge: `mass` is a node's, per weight. The nodes that it reached."""
        held, reached = self.arrays, []
        ways = [(held.indptr, held.dst, held.weight)]
        if both:
            ways.append((held.in_indptr, held.in_src, held.in_weight))
        for indptr, ends, weights in ways:
            positions, counts = row_positions(indptr, nodes)
            given = np.repeat(mass, counts)
            if self._weighted:
                given *= weights[positions]
            reached.append(ends[positions])
            np.add.at(waiting, reached[-1], given)
        return np.concatenate(reached)

    def _pushing(self, both: bool) -> tuple[Values, Values, Values]:
        return self._pushing_both if both else self._pushing_out

    @cached_property
    def _pushing_out(self) -> tuple[Values, Values, Values]:
        """(N,) each: 1 over the weight out, where a walk from anywhere is after an edge, and edges out, at least 1."""
        spread = np.asarray(self._into @ self._per_weight)
        return self._per_weight, spread / max(spread.sum(), 1e-300), _degrees(self.arrays.indptr)

    @cached_property
    def _pushing_both(self) -> tuple[Values, Values, Values]:
        """The same along edges in both directions, where a long walk is at a node in proportion to its weight."""
        held = self.arrays
        total = self._sums(held.indptr, held.weight) + self._sums(held.in_indptr, held.in_weight)
        degrees = np.maximum(np.diff(held.indptr) + np.diff(held.in_indptr), 1).astype(np.float64)
        return _inverse(total), total / max(total.sum(), 1e-300), degrees

    @cached_property
    def _into(self) -> sparse.csr_array:
        """(N, N): row i has the weights of the edges into i, the graph's own, in single precision. Times a vector in
        double precision it is multiplied in double precision."""
        held, count = self.arrays, self.arrays.nodes
        weights = held.in_weight if self._weighted else np.ones(held.edges, np.float32)
        return sparse.csr_array((weights, held.in_src, held.in_indptr.astype(np.int32)), shape=(count, count))

    @cached_property
    def _per_weight(self) -> Values:
        """(N,): 1 over the sum of the weights out, 0 where that is 0."""
        return _inverse(self._sums(self.arrays.indptr, self.arrays.weight))

    def _sums(self, indptr: NDArray[np.int64], weights: NDArray[np.float32]) -> Values:
        """(N,): the sum of each row's weights."""
        if not self._weighted:
            return np.diff(indptr).astype(np.float64)
        sums, filled = np.zeros(self.arrays.nodes), np.flatnonzero(np.diff(indptr))
        if len(filled):
            sums[filled] = np.add.reduceat(weights, indptr[filled], dtype=np.float64)
        return sums

    def _shares(self, proportions: Values | None) -> Values:
        """(N,), summing to 1; () if it is the same at each node."""
        count = self.arrays.nodes
        if proportions is None:
            return np.array(1 / count)
        values = np.asarray(proportions, np.float64)
        total = float(values.sum())
        if values.shape != (count,) or not (values >= 0).all() or not 0 < total < np.inf:
            raise ValueError(f"give each of the {count} nodes a proportion of 0 or more, and one of them more than 0")
        return values / total


class _Steps:
    """The steps of a walk, its nodes in any order. `into`: (N, N), single precision; `begin`, `lost_to`: (N,) or ()."""

    def __init__(
        self, into: sparse.csr_array, per_weight: Values, damping: float, begin: Values, lost_to: Values
    ) -> None:
        self._per_weight, self._damping = per_weight, damping
        self._begin, self._lost_to = begin, lost_to
        self._ends = np.flatnonzero(per_weight == 0)
        self._double = sparse.csr_array((into.data.astype(np.float64), into.indices, into.indptr), shape=into.shape)
        self._parts = list(self._sliced(into, PARTS))

    @staticmethod
    def _sliced(into: sparse.csr_array, parts: int) -> Iterator[tuple[slice, sparse.csr_array]]:
        """Its rows in so many parts of about as many edges, which share its arrays."""
        ends = np.searchsorted(into.indptr, np.linspace(0, into.nnz, parts + 1)[1:-1])
        for first, last in pairwise([0, *ends.tolist(), into.shape[0]]):
            edges = into.indptr[first : last + 1]
            inside = slice(int(edges[0]), int(edges[-1]))
            rows = (into.data[inside], into.indices[inside], edges - edges[0])
            yield slice(first, last), sparse.csr_array(rows, shape=(last - first, into.shape[1]))

    def ranks(self, accuracy: float) -> Values:
        begin, damping = self._begin, self._damping
        start = np.broadcast_to(begin, len(self._per_weight)).astype(np.float32)
        ranks = self._solve(((1 - damping) * begin).astype(np.float32), start, SINGLE)
        ranks, least = ranks / ranks.sum(), math.inf
        # What an exact step moves bounds what is left: the steps after it move d, d², … of that at most. So many steps
        # suffice even if nothing but they came nearer.
        for _ in range(math.ceil(math.log(accuracy / 2) / math.log(max(damping, 1e-300))) + 1):
            after = self._step(ranks)
            change = after - ranks
            moved = float(np.abs(change).sum())
            if moved * damping <= accuracy * (1 - damping):
                break
            if moved > 0.5 * least:  # single precision brings it no nearer
                ranks = after
                continue
            least = moved
            enough = accuracy * (1 - damping) / max(damping, 1e-300) / moved
            single = (change / moved).astype(np.float32)
            ranks = ranks + moved * self._solve(single, single, max(enough, SINGLE), ranks)
            ranks /= ranks.sum()
        return after

    def _step(self, ranks: Values) -> Values:
        """Where the walk is a step after it was at nodes in those shares, in double precision."""
        after: Values = self._double @ (ranks * self._per_weight)
        after *= self._damping
        after += self._damping * ranks[self._ends].sum() * self._lost_to + (1 - self._damping) * self._begin
        return after

    def _solve(
        self, constant: NDArray[np.float32], start: NDArray[np.float32], enough: float, ranks: Values | None = None
    ) -> Values:
        """x = Mx + constant in single precision, M being a step without the restart: most of the work, at two thirds of
        its price. From `start` on, until x moves by `enough` at most or comes no nearer.

        With the restart as the constant x is the ranks; with what a step changes in `ranks`, it is what they lack. The
        rows are worked out in parts, each from what is known of those before it (Gauss and Seidel), which takes two
        thirds of the rounds. x sums to 1, or to 0 if it is what ranks lack: what a round misses of that would fade by
        no more than the damping, and is put right at once.
        """
        lost_to, per_weight = self._lost_to.astype(np.float32), (self._damping * self._per_weight).astype(np.float32)
        found, before = start.copy(), math.inf
        given = found * per_weight
        lacks = None if ranks is None else ranks.astype(np.float32)
        while True:
            back, moved = np.float32(self._damping * found[self._ends].sum(dtype=np.float64)), 0.0
            for rows, part in self._parts:
                after = part @ given
                after += _of_rows(lost_to, rows) * back + _of_rows(constant, rows)
                moved += float(np.abs(after - found[rows]).sum())
                found[rows] = after
                np.multiply(after, per_weight[rows], out=given[rows])
            total = np.float32(found.sum(dtype=np.float64))
            if lacks is None:
                found /= total
            else:
                found -= total * lacks
            if not math.isfinite(moved):
                raise ValueError("a node's edges weigh less than single precision can hold; scale the weights up")
            if moved <= enough or moved >= before:
                return np.asarray(found, np.float64)
            np.multiply(found, per_weight, out=given)
            before = moved


def _of_rows(values: NDArray[np.float32], rows: slice) -> NDArray[np.float32]:
    return values[rows] if values.ndim else values


def _in_order(values: Values, order: NDArray[np.int64]) -> Values:
    return values[order] if values.ndim else values


def _inverse(values: Values) -> Values:
    return np.divide(1.0, values, out=np.zeros_like(values), where=values > 0)


def _degrees(indptr: NDArray[np.int64]) -> Values:
    return np.maximum(np.diff(indptr), 1).astype(np.float64)


def _distinct(nodes: NDArray[np.int32], mark: NDArray[np.int32]) -> NDArray[np.int32]:
    """Each node once, without sorting: the last to sign its place stays. `mark`: (N,), whatever is in it."""
    places = np.arange(len(nodes), dtype=np.int32)
    mark[nodes] = places
    once: NDArray[np.int32] = nodes[mark[nodes] == places]
    return once


def _largest(values: Values, nodes: NDArray[np.int32], count: int) -> NDArray[np.int64]:
    """Positions of the `count` largest, descending; of equal ones the first node."""
    least = np.partition(values, len(values) - count)[len(values) - count]
    among = np.flatnonzero(values >= least)
    return among[np.lexsort((nodes[among], -values[among]))[:count]]
