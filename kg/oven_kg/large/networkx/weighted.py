"""Shortest paths by weight, by networkx's names and signatures, over `graph.csr`.

Dijkstra's method with the order of networkx's queue, so that of paths of one weight the same is found. Distances alone,
where no order shows, are scipy's.
"""

from __future__ import annotations

from collections.abc import Collection, Hashable, Iterable
from dataclasses import dataclass, field
from heapq import heappop, heappush
from itertools import count
from typing import Any, Final

import networkx as nx
import numpy as np
from scipy import sparse

from oven_kg.large.networkx.csr import Csr, WeightedRows
from oven_kg.large.networkx.own import networkx_own, refuse
from oven_kg.large.networkx.unweighted import known

dijkstra_path = networkx_own(nx.dijkstra_path)
single_source_dijkstra = networkx_own(nx.single_source_dijkstra)
single_source_dijkstra_path = networkx_own(nx.single_source_dijkstra_path)
single_source_dijkstra_path_length = networkx_own(nx.single_source_dijkstra_path_length)
multi_source_dijkstra_path = networkx_own(nx.multi_source_dijkstra_path)
all_pairs_dijkstra = networkx_own(nx.all_pairs_dijkstra)
all_pairs_dijkstra_path = networkx_own(nx.all_pairs_dijkstra_path)
all_pairs_dijkstra_path_length = networkx_own(nx.all_pairs_dijkstra_path_length)

LARGE: Final = 2_000
"""Neighbours in a graph from which handing it to scipy is quicker than a loop: some 1 ms either way."""
EXACT: Final = 2.0**53
"""Below it sums of whole numbers are exact in scipy's doubles."""


@dataclass
class Queue:
    """Dijkstra's method from some nodes, a node settled at each turn."""

    rows: WeightedRows
    pushes: count[int]
    settled: dict[int, Any] = field(default_factory=dict)
    """Node → distance, in the order of settling."""
    seen: dict[int, Any] = field(default_factory=dict)
    before: dict[int, list[int]] = field(default_factory=dict)
    """Node → those that precede it at the least distance known, the first to give it first."""
    waiting: list[tuple[Any, int, int]] = field(default_factory=list)

    def start(self, nodes: Iterable[int]) -> None:
        """Put nodes into the queue at the distance 0."""
        for node in nodes:
            self.seen[node] = 0
            heappush(self.waiting, (0, next(self.pushes), node))

    def pop(self) -> int | None:
        """Settle the nearest node; None if it was settled before."""
        distance, _, node = heappop(self.waiting)
        if node in self.settled:
            return None
        self.settled[node] = distance
        return node

    def relax(self, node: int, cutoff: float | None = None) -> list[int]:
        """Look along the edges of a settled node; the neighbours that came nearer. Raises ValueError where a settled
        node could have been reached by less."""
        rows, distance, nearer = self.rows, self.settled[node], []
        first, last = int(rows.indptr[node]), int(rows.indptr[node + 1])
        for end, weight in zip(rows.ends[first:last].tolist(), rows.weights[first:last].tolist(), strict=True):
            length = distance + weight
            if cutoff is not None and length > cutoff:
                continue
            if end in self.settled:
                if length < self.settled[end]:
                    raise ValueError("Contradictory paths found:", "negative weights?")
                if length == self.settled[end] and end in self.before:
                    self.before[end].append(node)
            elif end not in self.seen or length < self.seen[end]:
                self.seen[end], self.before[end] = length, [node]
                heappush(self.waiting, (length, next(self.pushes), end))
                nearer.append(end)
            elif length == self.seen[end] and end in self.before:
                self.before[end].append(node)
        return nearer

    def run(self, target: int | None = None, cutoff: float | None = None) -> None:
        """Settle what can be reached within `cutoff`, or until `target` is settled."""
        while self.waiting:
            node = self.pop()
            if node is None:
                continue
            if node == target:
                return
            self.relax(node, cutoff)

    def way(self, node: int) -> list[int]:
        """From the nearest start to `node`."""
        way = [node]
        while before := self.before.get(way[-1]):
            way.append(before[0])
        return way[::-1]


def _queue(csr: Csr, weight: Hashable, *, backwards: bool = False) -> Queue:
    refuse(weight)
    return Queue(csr.lightest(weight, backwards=backwards), count())


def multi_source_dijkstra(
    G: Any,
    sources: Collection[Any],
    target: Hashable | None = None,
    cutoff: float | None = None,
    weight: Hashable = "weight",
) -> tuple[Any, Any]:
    """Distance and path from the nearest of `sources`: of each node, as dicts, or of `target`. Raises
    NetworkXNoPath."""
    starts = _starts(G.csr, sources)
    if target in sources:
        return 0, [target]
    csr: Csr = G.csr
    end = None if target is None else _find(csr, target)
    if target is not None and end is None:
        raise nx.NetworkXNoPath(f"No path to {target}.")
    queue = _queue(csr, weight)
    queue.start(starts)
    queue.run(end, cutoff)
    if end is None:
        return _distances(csr, queue), _paths(csr, queue)
    if end not in queue.settled:
        raise nx.NetworkXNoPath(f"No path to {target}.")
    return queue.settled[end], csr.labels.decode(queue.way(end))


def _starts(csr: Csr, sources: Collection[Any]) -> list[int]:
    if not sources:
        raise ValueError("sources must not be empty")
    return [known(csr, source, f"Node {source} not found in graph") for source in sources]


def _find(csr: Csr, node: Hashable) -> int | None:
    try:
        return csr.labels.index(node)
    except KeyError:
        return None


def _distances(csr: Csr, queue: Queue) -> dict[Any, Any]:
    return dict(zip(csr.labels.decode(list(queue.settled)), queue.settled.values(), strict=True))


def _paths(csr: Csr, queue: Queue) -> dict[Any, list[Any]]:
    """In the order of settling: a node's path continues one that is there already."""
    found: dict[int, list[Any]] = {}
    for node, name in zip(queue.settled, csr.labels.decode(list(queue.settled)), strict=True):
        before = queue.before.get(node)
        found[node] = [*found[before[0]], name] if before else [name]
    return {way[-1]: way for way in found.values()}


def multi_source_dijkstra_path_length(
    G: Any, sources: Collection[Any], cutoff: float | None = None, weight: Hashable = "weight"
) -> dict[Any, Any]:
    """Node → distance from the nearest of `sources`, nearest first."""
    csr: Csr = G.csr
    return distances(csr, _starts(csr, sources), cutoff, weight)


def distances(
    csr: Csr, starts: list[int], cutoff: float | None, weight: Hashable, *, backwards: bool = False
) -> dict[Any, Any]:
    """Node → distance from the nearest of `starts`; `backwards`: to it."""
    refuse(weight)
    rows = csr.lightest(weight, backwards=backwards)
    by_scipy = _by_scipy(rows, starts, cutoff) if len(rows.ends) >= LARGE else None
    if by_scipy is None:
        queue = Queue(rows, count())
        queue.start(starts)
        queue.run(None, cutoff)
        return _distances(csr, queue)
    nodes, lengths = by_scipy
    return dict(zip(csr.labels.decode(nodes), lengths, strict=True))


def _by_scipy(rows: WeightedRows, starts: list[int], cutoff: float | None) -> tuple[list[int], list[Any]] | None:
    """None where scipy's answer would not be networkx's: an infinite weight, for which there is a path in networkx; one
    below 0; whole numbers that doubles would round."""
    weights, limit = rows.weights, np.inf if cutoff is None else cutoff
    if limit < 0 or not (weights.min() >= 0 and weights.max() < np.inf):
        return None
    nodes = len(rows.indptr) - 1
    matrix = sparse.csr_array((weights.astype(np.float64), rows.ends, rows.indptr.astype(np.int32)), (nodes, nodes))
    found = sparse.csgraph.dijkstra(matrix, directed=True, indices=starts, limit=limit, min_only=True)
    reached = np.flatnonzero(np.isfinite(found))
    reached = reached[np.argsort(found[reached], kind="stable")]
    if np.issubdtype(weights.dtype, np.integer):
        if found[reached].max() >= EXACT:
            return None
        found[~np.isfinite(found)] = 0
        found = found.astype(np.int64)
    return reached.tolist(), found[reached].tolist()


def dijkstra_path_length(G: Any, source: Hashable, target: Hashable, weight: Hashable = "weight") -> Any:
    """The least sum of weights from `source` to `target`. Raises NetworkXNoPath."""
    csr: Csr = G.csr
    start = known(csr, source, f"Node {source} not found in graph")
    if source == target:
        return 0
    queue, end = _queue(csr, weight), _find(csr, target)
    if end is not None:
        queue.start([start])
        queue.run(end)
        if end in queue.settled:
            return queue.settled[end]
    raise nx.NetworkXNoPath(f"Node {target} not reachable from {source}")


def dijkstra_predecessor_and_distance(
    G: Any, source: Hashable, cutoff: float | None = None, weight: Hashable = "weight"
) -> tuple[dict[Any, list[Any]], dict[Any, Any]]:
    """Node → all that precede it on shortest paths from `source`, and node → distance."""
    csr: Csr = G.csr
    start = known(csr, source, f"Node {source} is not found in the graph")
    queue = _queue(csr, weight)
    queue.before[start] = []
    queue.start([start])
    queue.run(None, cutoff)
    names = dict(zip(queue.before, csr.labels.decode(list(queue.before)), strict=True))
    return (
        {names[node]: [names[other] for other in others] for node, others in queue.before.items()},
        _distances(csr, queue),
    )


def paths_to(csr: Csr, end: int, weight: Hashable) -> dict[Any, list[Any]]:
    """Node → path of least weight from it to `end`."""
    queue = _queue(csr, weight, backwards=True)
    queue.start([end])
    queue.run()
    return {node: way[::-1] for node, way in _paths(csr, queue).items()}


def bidirectional_dijkstra(
    G: Any, source: Hashable, target: Hashable, weight: Hashable = "weight"
) -> tuple[Any, list[Any]]:
    """Length and nodes of a path, searched from both ends in turn. Raises NetworkXNoPath."""
    csr: Csr = G.csr
    start = known(csr, source, f"Source {source} is not in G")
    end = known(csr, target, f"Target {target} is not in G")
    if start == end:
        return 0, [source]
    refuse(weight)
    pushes = count()
    sides = (Queue(csr.lightest(weight), pushes), Queue(csr.lightest(weight, backwards=True), pushes))
    sides[0].start([start])
    sides[1].start([end])
    best: tuple[Any, int] | None = None
    turn = 1
    while sides[0].waiting and sides[1].waiting:
        turn = 1 - turn
        side, other = sides[turn], sides[1 - turn]
        node = side.pop()
        if node is None:
            continue
        if node in other.settled:
            return _met(csr, sides, best)
        for nearer in side.relax(node):
            if nearer in other.seen:
                length = side.seen[nearer] + other.seen[nearer]
                if best is None or best[0] > length:
                    best = length, nearer
    raise nx.NetworkXNoPath(f"No path between {source} and {target}.")


def _met(csr: Csr, sides: tuple[Queue, Queue], best: tuple[Any, int] | None) -> tuple[Any, list[Any]]:
    if best is None:  # a node settled from both sides was seen from both
        raise AssertionError("the searches met nowhere")
    length, middle = best
    return length, csr.labels.decode([*sides[0].way(middle), *sides[1].way(middle)[-2::-1]])
