"""Queries of a large graph: neighbours, a shortest path, personalised PageRank, and a search for words.

The questions of oven_kg.reasoning.query, over arrays. Every answer is bounded by the request's limit, and what is read
for it by the size of the nodes' neighbourhoods, not by the graph's.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from functools import cached_property
from itertools import pairwise
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray

from oven_core.errors import ConfigError
from oven_core.protocol.graph_requests import GraphQuery, QueryAnswer, QueryRow
from oven_kg.arrays.graph_arrays import GraphArrays
from oven_kg.arrays.paths import shortest_path, within
from oven_kg.arrays.random_walk import RandomWalk
from oven_kg.arrays.word_index import WordIndex, split

WORDS: Final = 8
"""Words of a search that are looked for; the rest are passed over."""
CANDIDATES: Final = 20_000
"""Nodes that a search ranks, some 3 ms. Of words that more nodes hold, it ranks those that have a rarer word, too."""


class LargeQuery:
    """Answers queries of one graph. What a walk and a search need is made when the first of them is asked."""

    def __init__(self, arrays: GraphArrays) -> None:
        self._arrays = arrays
        self._walk = RandomWalk(arrays)

    def __call__(self, asked: GraphQuery) -> QueryAnswer:
        """Raises ConfigError for a node or a relation that is not there, and for a direction that the walk has not."""
        answers: dict[str, Callable[[GraphQuery], tuple[list[QueryRow], bool]]] = {
            "neighbors": self._neighbors,
            "path": self._path,
            "ppr": self._ppr,
            "search": self._search,
        }
        found, more = answers[asked.op](asked)
        return QueryAnswer(
            graph=self._arrays.sha, rows=tuple(found[: asked.limit]), more=more or len(found) > asked.limit
        )

    def _node(self, name: str) -> int:
        try:
            return self._arrays.index(name)
        except KeyError:
            near = ", ".join(map(repr, self._arrays.near(name)))
            raise ConfigError(f"the graph has no node {name!r}; near it in the alphabet are {near}") from None

    def _relations(self, names: Collection[str]) -> list[int] | None:
        known = self._arrays.relations
        if unknown := [name for name in names if name not in known]:
            raise ConfigError(f"the graph has no relation {unknown[0]!r}; it has {', '.join(known[:20])}")
        return [known.index(name) for name in names] or None

    def _row(self, node: int, **more: object) -> QueryRow:
        kind = self._arrays.kind_names[self._arrays.kinds[node]]
        return QueryRow.model_validate({"node": self._arrays.name(node), "kind": kind, **more})

    def _neighbors(self, asked: GraphQuery) -> tuple[list[QueryRow], bool]:
        """One edge away: each edge, the heaviest first, of equal ones those along it first, then by name. Further away:
        each node, the near ones first."""
        start, relations = self._node(asked.node), self._relations(asked.relations)
        if asked.depth == 1:
            return self._edges(start, relations, asked), False
        nodes, depths = within(self._arrays, start, asked.depth, asked.direction, relations, enough=asked.limit + 1)
        found = list(zip(nodes[: asked.limit + 1].tolist(), depths.tolist(), strict=False))
        return [self._row(node, depth=depth) for node, depth in found], False

    def _edges(self, start: int, relations: Collection[int] | None, asked: GraphQuery) -> list[QueryRow]:
        held = self._arrays
        parts: list[tuple[Any, ...]] = []
        if asked.direction != "in":
            first = int(held.indptr[start])
            ends, rel, weight = held.out(start)
            parts.append((ends, rel, weight, np.arange(first, first + len(ends)), np.zeros(len(ends), np.int8)))
        if asked.direction != "out":
            ends, rel, weight = held.into(start)
            edge = held.in_edge[int(held.in_indptr[start]) : int(held.in_indptr[start + 1])]
            parts.append((ends, rel, weight, edge, np.ones(len(ends), np.int8)))
        columns: list[Any] = [np.concatenate(column) for column in zip(*parts, strict=True)]
        if relations is not None:
            columns = [column[np.isin(columns[1], list(relations))] for column in columns]
        ends, rel, weight, edge, against = columns
        order = np.lexsort((rel, ends, against, -weight))[: asked.limit + 1]
        return [
            self._row(
                int(ends[at]),
                edge=str(edge[at]),
                relation=held.relations[rel[at]],
                towards="in" if against[at] else "out",
                score=float(weight[at]),
            )
            for at in order
        ]

    def _path(self, asked: GraphQuery) -> tuple[list[QueryRow], bool]:
        start, end, relations = self._node(asked.node), self._node(asked.to), self._relations(asked.relations)
        way = shortest_path(self._arrays, start, end, asked.direction, relations)
        rows = [self._row(way[0])] if way else []
        return rows + [self._step(one, other, relations, asked) for one, other in pairwise(way)], False

    def _step(self, one: int, other: int, relations: Collection[int] | None, asked: GraphQuery) -> QueryRow:
        """The heaviest of the edges between two nodes, along it where there is one."""
        wanted = self._edges_between(one, other, relations) if asked.direction != "in" else []
        towards = "out" if wanted else "in"
        edge = max(wanted or self._edges_between(other, one, relations), key=lambda at: self._arrays.weight[at])
        relation = self._arrays.relations[self._arrays.rel[edge]]
        score = float(self._arrays.weight[edge])
        return self._row(other, edge=str(edge), relation=relation, towards=towards, score=score)

    def _edges_between(self, source: int, target: int, relations: Collection[int] | None) -> list[int]:
        ends, rel, _ = self._arrays.out(source)
        low, high = np.searchsorted(ends, [target, target + 1])
        first = int(self._arrays.indptr[source])
        return [first + at for at in range(low, high) if relations is None or rel[at] in relations]

    def _ppr(self, asked: GraphQuery) -> tuple[list[QueryRow], bool]:
        """By the weights of the edges."""
        if asked.relations or asked.direction == "in":
            raise ConfigError("ppr walks along all relations, in the direction both or out; leave the others out")
        start = self._node(asked.node)
        nodes, shares = self._walk.near(start, asked.limit + 2, both=asked.direction == "both")
        found = [(int(node), float(share)) for node, share in zip(nodes, shares, strict=True) if share > 0]
        return [self._row(node, score=share) for node, share in found if node != start], False

    def _search(self, asked: GraphQuery) -> tuple[list[QueryRow], bool]:
        """Nodes by how many of the words their name holds; of equal ones the shortest name first."""
        by_word = sorted((self._words.nodes(word) for word in split(asked.node)[:WORDS]), key=len)
        found, more = np.empty(0, np.int32), False
        for nodes in by_word:
            if len(found) + len(nodes) > CANDIDATES:  # a common word ranks the nodes that have rarer ones
                more = True
                nodes = nodes[: 0 if len(found) else CANDIDATES]
            found = np.union1d(found, nodes)
        counts = sum((_held(found, nodes).astype(np.int64) for nodes in by_word), np.zeros(len(found), np.int64))
        lengths = np.diff(self._arrays.name_offsets)[found]
        best = np.lexsort((found, lengths, -counts))[: asked.limit + 1]
        return [self._row(int(found[at]), score=int(counts[at])) for at in best], more

    @cached_property
    def _words(self) -> WordIndex:
        return WordIndex(self._arrays)

    def prepare(self) -> None:
        """Make what the first walk and the first search would make, some 0.3 s."""
        if self._arrays.nodes:
            self._walk.near(0, 1, both=True)
        _ = self._words


def _held(nodes: NDArray[np.int32], among: NDArray[np.int32]) -> NDArray[np.bool_]:
    """Which of some nodes are among others; both ascending."""
    places = np.searchsorted(among, nodes)
    places[places == len(among)] = 0
    return among[places] == nodes if len(among) else np.zeros(len(nodes), bool)
