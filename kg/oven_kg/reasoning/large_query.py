"""Query a large graph: neighbours, a shortest path, personalised PageRank, and a search for words.

These are the queries of oven_kg.reasoning.query, on arrays. The request's limit bounds every answer.
"""

from __future__ import annotations

from collections.abc import Callable, Collection
from itertools import pairwise
from typing import Any, Final, TypeAlias

import numpy as np

from oven_core.errors import ConfigError
from oven_core.protocol.graph_requests import GraphQuery, QueryAnswer, QueryRow
from oven_kg.arrays.graph_arrays import GraphArrays
from oven_kg.arrays.paths import nodes_within, shortest_path
from oven_kg.arrays.random_walk import RandomWalk
from oven_kg.arrays.word_search import WordSearch, split_words

MAX_WORDS: Final = 8
"""Maximum number of words in a search. The rest are ignored."""
MAX_CANDIDATES: Final = 20_000
"""Maximum number of nodes that a search ranks, which takes about 3 ms. Nodes with the rarest words come first."""

Rows: TypeAlias = tuple[list[QueryRow], bool]
"""Rows of an answer, and whether the search omitted nodes."""


class LargeQuery:
    """Answers queries about one graph. The data for walks and searches are computed on first use."""

    def __init__(self, arrays: GraphArrays) -> None:
        self._arrays = arrays
        self._walk, self._words = RandomWalk(arrays), WordSearch(arrays)

    def __call__(self, request: GraphQuery) -> QueryAnswer:
        """Answer a query. Raises ConfigError for an unknown node or relation, and for an unsupported direction."""
        operations: dict[str, Callable[[GraphQuery], Rows]] = {
            "neighbors": self._find_neighbors, "path": self._find_path, "ppr": self._rank_by_walk,
            "search": self._search_nodes,
        }  # fmt: skip
        rows, more = operations[request.op](request)
        limit = request.limit
        return QueryAnswer(graph=self._arrays.sha, rows=tuple(rows[:limit]), more=more or len(rows) > limit)

    def _node_number(self, name: str) -> int:
        try:
            return self._arrays.index(name)
        except KeyError:
            similar_names = ", ".join(map(repr, self._arrays.similar_names(name)))
            raise ConfigError(f"the graph has no node {name!r}; similar names are {similar_names}") from None

    def _relation_numbers(self, names: Collection[str]) -> list[int] | None:
        known_names = self._arrays.relations
        if unknown_names := [name for name in names if name not in known_names]:
            raise ConfigError(f"the graph has no relation {unknown_names[0]!r}; it has {', '.join(known_names[:20])}")
        return [known_names.index(name) for name in names] or None

    def _create_row(self, node: int, **fields: object) -> QueryRow:
        kind = self._arrays.kind_names[self._arrays.kinds[node]]
        return QueryRow.model_validate({"node": self._arrays.name(node), "kind": kind, **fields})

    def _create_edge_row(self, node: int, edge: int, towards: str) -> QueryRow:
        """Return the row of a node reached by an edge."""
        relation = self._arrays.relations[self._arrays.rel[edge]]
        score = float(self._arrays.weight[edge])
        return self._create_row(node, edge=str(edge), relation=relation, towards=towards, score=score)

    def _find_neighbors(self, request: GraphQuery) -> Rows:
        """Return one row per edge at depth 1: heaviest first, then outgoing before incoming edges, then by name. At a
        greater depth, return one row per node, nearest first."""
        start, relations = self._node_number(request.node), self._relation_numbers(request.relations)
        max_rows = request.limit + 1
        if request.depth == 1:
            return self._edge_rows(start, relations, request.direction, max_rows), False
        direction, depth = request.direction, request.depth
        nodes, depths = nodes_within(self._arrays, start, depth, direction, relations, min_nodes=max_rows)
        pairs = zip(nodes[:max_rows].tolist(), depths[:max_rows].tolist(), strict=True)
        return [self._create_row(node, depth=depth) for node, depth in pairs], False

    def _edge_rows(
        self, start: int, relations: Collection[int] | None, direction: str, max_rows: int
    ) -> list[QueryRow]:
        """Return one row per edge of a node, in the order that `_find_neighbors` describes."""
        arrays = self._arrays
        parts: list[tuple[Any, ...]] = []  # (other end, edge, whether it is incoming)
        if direction != "in":
            edges = np.arange(arrays.indptr[start], arrays.indptr[start + 1])
            parts.append((arrays.dst[edges], edges, np.zeros(len(edges), np.int8)))
        if direction != "out":
            positions = slice(int(arrays.in_indptr[start]), int(arrays.in_indptr[start + 1]))
            edges = arrays.in_edge[positions]
            parts.append((arrays.in_src[positions], edges, np.ones(len(edges), np.int8)))
        ends, edges, is_incoming = (np.concatenate(column) for column in zip(*parts, strict=True))
        if relations is not None:
            mask = np.isin(arrays.rel[edges], list(relations))
            ends, edges, is_incoming = ends[mask], edges[mask], is_incoming[mask]
        order = np.lexsort((arrays.rel[edges], ends, is_incoming, -arrays.weight[edges]))[:max_rows]
        return [self._create_edge_row(int(ends[n]), int(edges[n]), "in" if is_incoming[n] else "out") for n in order]

    def _find_path(self, request: GraphQuery) -> Rows:
        start, end = self._node_number(request.node), self._node_number(request.to)
        relations = self._relation_numbers(request.relations)
        path = shortest_path(self._arrays, start, end, request.direction, relations)
        rows = [self._create_row(path[0])] if path else []
        for previous, node in pairwise(path):
            rows.append(self._create_step_row(previous, node, relations, request.direction))
        return rows, False

    def _create_step_row(self, previous: int, node: int, relations: Collection[int] | None, direction: str) -> QueryRow:
        """Return the row of the heaviest edge from `previous` to `node`, or else from `node` to `previous`."""
        edges = self._edges_between(previous, node, relations) if direction != "in" else []
        towards = "out" if edges else "in"
        edges = edges or self._edges_between(node, previous, relations)
        return self._create_edge_row(node, max(edges, key=lambda edge: float(self._arrays.weight[edge])), towards)

    def _edges_between(self, source: int, target: int, relations: Collection[int] | None) -> list[int]:
        ends, rel, _ = self._arrays.outgoing(source)
        low, high = np.searchsorted(ends, [target, target + 1])
        first = int(self._arrays.indptr[source])
        return [first + n for n in range(low, high) if relations is None or rel[n] in relations]

    def _rank_by_walk(self, request: GraphQuery) -> Rows:
        """Return the nodes with the highest personalised PageRank, in which edges count by their weights."""
        if request.relations or request.direction == "in":
            raise ConfigError("ppr follows all relations, in the direction both or out; remove these options")
        start = self._node_number(request.node)
        nodes, shares = self._walk.nearest(start, request.limit + 2, undirected=request.direction == "both")
        pairs = zip(nodes.tolist(), shares.tolist(), strict=True)
        return [self._create_row(node, score=share) for node, share in pairs if share > 0 and node != start], False

    def _search_nodes(self, request: GraphQuery) -> Rows:
        """Return nodes by the number of matching words in their names, and then by the length of the name."""
        words = split_words(request.node)[:MAX_WORDS]
        nodes_by_word = sorted((self._words.nodes_with(word, MAX_CANDIDATES + 1) for word in words), key=len)
        candidates, more = np.empty(0, np.int32), False
        for nodes in nodes_by_word:
            more = len(candidates) + len(nodes) > MAX_CANDIDATES
            if not more or not len(candidates):
                candidates = np.union1d(candidates, nodes[:MAX_CANDIDATES])
            if more:
                break  # more common words add no nodes to those of rarer words
        counts = np.array([len({*words} & {*split_words(name)}) for name in self._arrays.names(candidates)], np.int64)
        lengths = np.diff(self._arrays.name_offsets)[candidates]
        order = np.lexsort((candidates, lengths, -counts))[: request.limit + 1]
        return [self._create_row(int(candidates[n]), score=int(counts[n])) for n in order], more
