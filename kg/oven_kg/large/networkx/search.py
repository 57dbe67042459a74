"""Breadth-first search over rows of integers, in the very order of networkx's."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Final

import numpy as np
from numpy.typing import NDArray

from oven_kg.large.networkx.csr import Csr, Integers, Rows

FEW: Final = 64
"""Entries of a level up to which a loop over Python's integers is quicker than numpy's dozen calls."""


class Search:
    """One search, and what it has seen."""

    def __init__(self, nodes: int) -> None:
        self._seen = bytearray(nodes)
        self.seen: NDArray[np.uint8] = np.frombuffer(self._seen, np.uint8)
        """(N,): 1 for a node that was found; written to by the search alone."""
        self._first = np.empty(0, np.int64)

    def start(self, nodes: Sequence[int]) -> Integers:
        """The level that the search begins with."""
        for node in nodes:
            self._seen[node] = 1
        return np.asarray(nodes, np.int64)

    def next_level(self, rows: Rows, level: Integers) -> tuple[Integers, Integers]:
        """Nodes that are seen for the first time, and which of `level` each was reached from: in networkx's order,
        which takes the nodes of a level as they were found and the neighbours of each as the graph has them."""
        starts = rows.indptr[level]
        counts = rows.indptr[level + 1] - starts
        total = int(counts.sum())
        if total <= FEW:
            return self._by_hand(rows, level, starts, counts)
        entries = np.repeat(starts - (np.cumsum(counts) - counts), counts) + np.arange(total)
        ends, parents = rows.ends[entries], np.repeat(level, counts)
        new = self.seen[ends] == 0
        ends, parents = ends[new].astype(np.int64), parents[new]
        if len(self._first) == 0:
            self._first = np.empty(len(self.seen), np.int64)
        places = np.arange(len(ends))
        self._first[ends[::-1]] = places[::-1]  # of assignments to one place the last one stays
        once = self._first[ends] == places
        children = ends[once]
        self.seen[children] = 1
        return children, parents[once]

    def _by_hand(self, rows: Rows, level: Integers, starts: Integers, counts: Integers) -> tuple[Integers, Integers]:
        children: list[int] = []
        parents: list[int] = []
        for node, start, count in zip(level.tolist(), starts.tolist(), counts.tolist(), strict=True):
            for end in rows.ends[start : start + count].tolist():
                if not self._seen[end]:
                    self._seen[end] = 1
                    children.append(end)
                    parents.append(node)
        return np.array(children, np.int64), np.array(parents, np.int64)


def levels(
    rows: Rows, nodes: int, sources: Sequence[int], limit: float | None = None
) -> Iterator[tuple[Integers, Integers]]:
    """Level by level the nodes that are reached from `sources`, the sources first, and what each was reached from
    (the sources: from −1). At most `limit` levels after the first."""
    search = Search(nodes)
    level = search.start(sources)
    yield level, np.full(len(level), -1, np.int64)
    depth = 0
    while len(level) and (limit is None or depth < limit):
        level, parents = search.next_level(rows, level)
        depth += 1
        if len(level):
            yield level, parents


def meet(forward: Rows, backward: Rows, nodes: int, source: int, target: int) -> list[int] | None:
    """A shortest path by search from both ends, the one that networkx's finds; None if there is none."""
    if source == target:
        return [source]
    ends, rows = (Search(nodes), Search(nodes)), (forward, backward)
    fringes: list[Integers] = [ends[0].start([source]), ends[1].start([target])]
    tables = (np.full(nodes, -1, np.int64), np.full(nodes, -1, np.int64))
    while len(fringes[0]) and len(fringes[1]):
        side = 0 if len(fringes[0]) <= len(fringes[1]) else 1
        fringes[side], parents = ends[side].next_level(rows[side], fringes[side])
        tables[side][fringes[side]] = parents
        both = np.flatnonzero(ends[1 - side].seen[fringes[side]])
        if len(both):
            middle = int(fringes[side][both[0]])
            return [*reversed(_way(tables[0], middle)), *_way(tables[1], middle)[1:]]
    return None


def within(csr: Csr, source: int, radius: float) -> Integers:
    """Nodes at most `radius` edges from `source`, whichever way the edges point; itself first."""
    search = Search(len(csr))
    level, depth = search.start([source]), 0
    found = [level]
    while len(level) and depth < radius:
        level = np.concatenate([search.next_level(rows, level)[0] for rows in (csr.out, csr.into)])
        depth += 1
        found.append(level)
    return np.concatenate(found)


def _way(parents: Integers, node: int) -> list[int]:
    way = [node]
    while (before := int(parents[way[-1]])) >= 0:
        way.append(before)
    return way
