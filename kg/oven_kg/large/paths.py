"""Ways over arrays: what lies within some edges of a node, and shortest paths.

A direction is "out", along the edges, "in", against them, or "both". `relations` are positions in `Arrays.relations`;
None is all of them.
"""

from __future__ import annotations

from collections.abc import Collection, Iterator
from itertools import pairwise
from typing import Any, Final, Literal, TypeAlias

import numpy as np
from numpy.typing import NDArray

from oven_kg.large.arrays import Arrays, row_positions

Direction: TypeAlias = Literal["out", "in", "both"]
Nodes: TypeAlias = NDArray[np.int32]

FAR_BITS: Final = 6
"""Of a key of 32 bits that holds a node, of 2^24, and below it how far it is: sorted, they show the nearest of each."""
FARTHEST: Final = 2**FAR_BITS - 1
PIECE: Final = 2**17
"""Edges that are followed at a time where only so many nodes are wanted: some 2 ms."""
REVERSED: Final[dict[Direction, Direction]] = {"out": "in", "in": "out", "both": "both"}


def neighbours(
    arrays: Arrays, nodes: Nodes, direction: Direction = "out", relations: Collection[int] | None = None
) -> Nodes:
    """The nodes one edge away from any of some, ascending, each once."""
    return _ascending(_reached(arrays, nodes, direction, relations))


def within(
    arrays: Arrays,
    start: int,
    depth: int,
    direction: Direction = "out",
    relations: Collection[int] | None = None,
    *,
    most: int | None = None,
) -> tuple[Nodes, Nodes]:
    """The nodes at most `depth` edges away from `start`, itself left out, and how many each is away; the near ones
    first. With `most`, at least that many of them if there are so many: then only some of the farthest may be there,
    found without following all of a hub's edges. Raises ValueError for a depth that is not from 1 to FARTHEST."""
    if not 1 <= depth <= FARTHEST:
        raise ValueError(f"a depth of {depth}; from 1 to {FARTHEST} edges are followed")
    if most is not None:
        return _some_within(arrays, start, depth, direction, relations, most)
    if direction == "out" and relations is None:
        level = arrays.out(start)[0]
    else:
        level = _reached(arrays, np.array([start], np.int32), direction, relations)
    keys = np.concatenate([[start << FAR_BITS], level << FAR_BITS | 1], dtype=np.int32, casting="unsafe")
    for far in range(2, depth + 1):
        reached = _reached(arrays, level, direction, relations)
        keys = np.concatenate([keys, reached << FAR_BITS | far])
        if far < depth:
            keys = _nearest(keys)
            level = keys[keys & FARTHEST == far] >> FAR_BITS
    keys = _nearest(keys)
    distances = keys & FARTHEST
    near_first = distances.argsort(kind="stable")[1:]
    return (keys >> FAR_BITS).take(near_first), distances.take(near_first)


def _some_within(
    arrays: Arrays, start: int, depth: int, direction: Direction, relations: Collection[int] | None, most: int
) -> tuple[Nodes, Nodes]:
    found = [np.array([start], np.int32)]
    seen = found[0]
    while len(found) <= depth and len(found[-1]) and len(seen) <= most:
        level = found[-1][:0]
        for piece in _pieces(arrays, found[-1], direction):
            level = _merged(level, _without(_without(neighbours(arrays, piece, direction, relations), seen), level))
            if len(seen) + len(level) > most:
                break
        seen = _merged(seen, level)
        found.append(level)
    sizes = [len(level) for level in found[1:]]
    distances = np.repeat(np.arange(1, len(found), dtype=np.int32), sizes)
    return np.concatenate([*found[1:], found[0][:0]]), distances


def shortest_path(
    arrays: Arrays, start: int, end: int, direction: Direction = "out", relations: Collection[int] | None = None
) -> list[int]:
    """The nodes of a path with the fewest edges, both ends included; empty if there is none. Of several the first by
    the names of its nodes. The search goes from both ends at once."""
    ahead, back = [np.array([start], np.int32)], [np.array([end], np.int32)]
    seen = [ahead[0], back[0]]
    while not len(meet := _common(ahead[-1], back[-1])):
        side, way = (
            (0, ahead)
            if _edges(arrays, ahead[-1], direction) <= _edges(arrays, back[-1], REVERSED[direction])
            else (1, back)
        )
        towards = REVERSED[direction] if side else direction
        level = _without(neighbours(arrays, way[-1], towards, relations), seen[side])
        if not len(level):
            return []
        seen[side] = _merged(seen[side], level)
        way.append(level)
    # The levels ahead hold nodes that lead nowhere: what is kept leads to where the two searches met.
    kept = [meet]
    for level in reversed(ahead[:-1]):
        kept.append(_common(level, neighbours(arrays, kept[-1], REVERSED[direction], relations)))
    stages = [*reversed(kept), *reversed(back[:-1])]
    path = [start]
    for stage in stages[1:]:
        path.append(int(_common(neighbours(arrays, np.array(path[-1:], np.int32), direction, relations), stage)[0]))
    return path


def _reached(arrays: Arrays, nodes: Nodes, direction: Direction, relations: Collection[int] | None) -> Nodes:
    """Where each edge from any of some nodes leads."""
    if direction == "out":
        return _ends(arrays.indptr, arrays.dst, arrays.rel, nodes, relations)
    against = _ends(arrays.in_indptr, arrays.in_src, arrays.in_rel, nodes, relations)
    if direction == "in":
        return against
    return np.concatenate([_ends(arrays.indptr, arrays.dst, arrays.rel, nodes, relations), against])


def _nearest(keys: Nodes) -> Nodes:
    """Of each node its nearest key, ascending."""
    keys.sort()
    nodes = keys >> FAR_BITS
    first = np.empty(len(keys), bool)
    first[0] = True
    np.not_equal(nodes[1:], nodes[:-1], out=first[1:])
    return keys[first]


def _ends(
    indptr: NDArray[np.int64], ends: Nodes, rel: NDArray[np.int16], nodes: Nodes, relations: Collection[int] | None
) -> Nodes:
    positions: Any
    if len(nodes) == 1:
        positions = slice(*indptr[nodes[0] : nodes[0] + 2].tolist())
    else:
        positions, _ = row_positions(indptr, nodes)
    found: Nodes = ends[positions] if isinstance(positions, slice) else ends.take(positions)
    return found if relations is None else found[np.isin(rel[positions], list(relations))]


def _edges(arrays: Arrays, nodes: Nodes, direction: Direction) -> int:
    """How many edges a step from there follows."""
    total = 0
    if direction != "in":
        total += int((arrays.indptr[nodes + 1] - arrays.indptr[nodes]).sum())
    if direction != "out":
        total += int((arrays.in_indptr[nodes + 1] - arrays.in_indptr[nodes]).sum())
    return total


def _pieces(arrays: Arrays, nodes: Nodes, direction: Direction) -> Iterator[Nodes]:
    """Nodes in portions of some PIECE edges; one node's edges are not divided."""
    counts = np.zeros(len(nodes), np.int64)
    if direction != "in":
        counts += arrays.indptr[nodes + 1] - arrays.indptr[nodes]
    if direction != "out":
        counts += arrays.in_indptr[nodes + 1] - arrays.in_indptr[nodes]
    cuts = np.flatnonzero(np.diff(np.cumsum(counts) // PIECE)) + 1
    for first, last in pairwise([0, *cuts.tolist(), len(nodes)]):
        yield nodes[first:last]


def _ascending(nodes: Nodes) -> Nodes:
    nodes = np.sort(nodes)
    if not len(nodes):
        return nodes
    first = np.empty(len(nodes), bool)
    first[0] = True
    np.not_equal(nodes[1:], nodes[:-1], out=first[1:])
    return nodes[first]


def _held(nodes: Nodes, among: Nodes) -> NDArray[np.bool_]:
    """Which of some nodes are among others; both ascending, `among` not empty."""
    places = np.searchsorted(among, nodes)
    places[places == len(among)] = 0
    held: NDArray[np.bool_] = among[places] == nodes
    return held


def _without(nodes: Nodes, others: Nodes) -> Nodes:
    return nodes[~_held(nodes, others)] if len(others) else nodes


def _common(nodes: Nodes, others: Nodes) -> Nodes:
    return nodes[_held(nodes, others)] if len(others) else others


def _merged(nodes: Nodes, others: Nodes) -> Nodes:
    if not len(nodes) or not len(others):
        return others if len(others) else nodes
    return np.sort(np.concatenate([nodes, others]))
