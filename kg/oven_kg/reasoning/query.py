"""Queries of the graph: neighbours, a shortest path, personalised PageRank, and a search for words.

Every answer is bounded by the request's limit. Walks and ways take edges in both directions: they are for finding one's
way about, not for what follows from what.
"""

from __future__ import annotations

import heapq
import re
from collections import Counter
from functools import cache
from typing import Final

from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.graph_requests import GraphQuery, QueryAnswer, QueryRow
from oven_kg.graph.knowledge import Knowledge

RESTART: Final = 0.15
"""Probability with which the walk goes back to where it began (1 − 0.85, as in Page et al. 1999)."""
ACCURACY: Final = 1e-5
"""The walk's residue, per unit of a node's degree, below which nothing is pushed on."""


def query(graph: Knowledge, asked: GraphQuery) -> QueryAnswer:
    """Raises UnknownNameError for a node or a relation that is not there, and ConfigError for a direction that the walk
    has not."""
    _relations(graph, asked)
    found = {"neighbors": _neighbors, "path": _path, "ppr": _ppr, "search": _search}[asked.op](graph, asked)
    return QueryAnswer(graph=graph.sha, rows=tuple(found[: asked.limit]), more=len(found) > asked.limit)


def _node(graph: Knowledge, name: str) -> str:
    if name not in graph.nodes:
        raise UnknownNameError("node", name, graph.nodes)
    return name


def _row(graph: Knowledge, id_: str, **more: object) -> QueryRow:
    node = graph.nodes[id_]
    return QueryRow.model_validate({"node": id_, "kind": node.kind, "text": node.text, **more})


def _neighbors(graph: Knowledge, asked: GraphQuery) -> list[QueryRow]:
    """One edge away: each edge. Further away: each node, the near ones first."""
    start = _node(graph, asked.node)
    if asked.depth == 1:
        return [
            _row(graph, end, edge=key, relation=graph.edges[key].relation, towards=towards)
            for end, key, towards in _edges(graph, start, asked)
        ]
    depths = {start: 0}
    waiting = [start]
    for at in waiting:
        for end, _, _ in _edges(graph, at, asked) if depths[at] < asked.depth else ():
            if end not in depths:
                depths[end] = depths[at] + 1
                waiting.append(end)
    ranked = sorted((depth, end) for end, depth in depths.items() if depth)
    return [_row(graph, end, depth=depth) for depth, end in ranked]


def _edges(graph: Knowledge, node: str, asked: GraphQuery) -> list[tuple[str, str, str]]:
    """(its other end, its id, "out" or "in") of the edges that the question follows from a node."""
    found = []
    if asked.direction != "in":
        found += [(end, key, "out") for _, end, key in sorted(graph.network.out_edges(node, keys=True))]
    if asked.direction != "out":
        found += [
            (end, key, "in")
            for end, _, key in sorted(graph.network.in_edges(node, keys=True))
            if asked.direction == "in" or graph.edges[key].relation != "CONTRADICTS"  # stands in both directions
        ]
    return [step for step in found if not asked.relations or graph.edges[step[1]].relation in asked.relations]


def _relations(graph: Knowledge, asked: GraphQuery) -> None:
    known = sorted({edge.relation for edge in graph.edges.values()})
    for name in asked.relations:
        if name not in known:
            raise UnknownNameError("relation", name, known)


def _path(graph: Knowledge, asked: GraphQuery) -> list[QueryRow]:
    """The nodes of a shortest way, the first of them by name where several are as short; empty where there is none."""
    start, end = _node(graph, asked.node), _node(graph, asked.to)
    came: dict[str, tuple[str, QueryRow]] = {start: ("", _row(graph, start))}
    waiting = [start]
    for at in waiting:
        if at == end:
            break
        steps = _edges(graph, at, asked)
        for near, key, towards in sorted(steps, key=lambda step: (step[0], step[2] == "in", step[1])):
            if near not in came:
                relation = graph.edges[key].relation
                came[near] = at, _row(graph, near, edge=key, relation=relation, towards=towards)
                waiting.append(near)
    rows, at = [], end
    while at in came:
        at, row = came[at]
        rows.append(row)
    return rows[::-1]


def _ppr(graph: Knowledge, asked: GraphQuery) -> list[QueryRow]:
    """Personalised PageRank by forward push (Andersen, Chung & Lang 2006): each share is too low by at most ACCURACY
    times the node's degree. Pushed in the order of the residue, so that the answer does not depend on the files'."""
    if asked.relations or asked.direction == "in":
        raise ConfigError("ppr walks along all relations, in the direction both or out; leave the others out")
    start = _node(graph, asked.node)
    around = cache(lambda node: _around(graph, node, both=asked.direction == "both"))
    share: dict[str, float] = {}
    residue: dict[str, float] = {start: 1.0}
    waiting = [(-1.0, start)]
    while waiting:
        _, at = heapq.heappop(waiting)
        mass = residue[at]  # once in the queue until it is pushed
        ends = around(at)
        degree = sum(ends.values())
        if not degree:
            break  # the walk stays where it began
        residue[at] = 0.0
        share[at] = share.get(at, 0.0) + RESTART * mass
        for end, edges in ends.items():
            before, limit = residue.get(end, 0.0), ACCURACY * sum(around(end).values())
            residue[end] = before + (1 - RESTART) * mass * edges / degree
            if before < limit <= residue[end]:
                heapq.heappush(waiting, (-residue[end], end))
    ranked = sorted(share.items(), key=lambda item: (-item[1], item[0]))
    return [_row(graph, id_, score=value) for id_, value in ranked[: asked.limit + 2] if id_ != start]


def _around(graph: Knowledge, node: str, *, both: bool) -> dict[str, int]:
    """Neighbour → edges to it, or from it."""
    keys = {(dst, key) for _, dst, key in graph.network.out_edges(node, keys=True)}
    if both:
        keys |= {(src, key) for src, _, key in graph.network.in_edges(node, keys=True)}
    return dict(sorted(Counter(end for end, _ in keys).items()))


def _search(graph: Knowledge, asked: GraphQuery) -> list[QueryRow]:
    """Nodes by how many of the words their id or text holds."""
    words = set(re.findall(r"\w+", asked.node.lower().replace("_", " ")))
    found = []
    for node in graph.nodes.values():
        held = set(re.findall(r"\w+", f"{node.id} {node.text}".lower().replace("_", " ")))
        if count := len(words & held):
            found.append(_row(graph, node.id, score=count))
    return sorted(found, key=lambda row: (-row.score, row.node))
