"""Query the graph: neighbours, a shortest path, personalised PageRank, and a search for words.

The request's limit bounds every answer. Paths and walks follow edges in both directions unless the request says
otherwise, because they explore the graph and do not derive anything.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from functools import cache
from typing import Final, NamedTuple

from oven_core.errors import ConfigError, UnknownNameError
from oven_core.protocol.graph_requests import GraphQuery, QueryAnswer, QueryRow
from oven_kg.graph.knowledge_graph import KnowledgeGraph

RESTART: Final = 0.15
"""Probability that the walk returns to its start (1 − 0.85, as in Page et al. 1999)."""
ACCURACY: Final = 1e-5
"""Maximum sum of absolute errors of the shares."""
ITERATIONS: Final = math.ceil(math.log(ACCURACY / 2) / math.log(1 - RESTART))
"""Number of iterations that reduce the error, at most 2 at the start, to ACCURACY."""


class _Step(NamedTuple):
    """A step along an edge, or against it."""

    end: str
    edge: str
    towards: str
    """The direction of the edge as seen from the start of the step, "out" or "in"."""


def query(graph: KnowledgeGraph, request: GraphQuery) -> QueryAnswer:
    relations = sorted({edge.relation for edge in graph.edges.values()})
    for name in request.relations:
        if name not in relations:
            raise UnknownNameError("relation", name, relations)
    operations = {"neighbors": _find_neighbors, "path": _find_path, "ppr": _rank_by_walk, "search": _search_nodes}
    rows = operations[request.op](graph, request)
    return QueryAnswer(graph=graph.sha, rows=tuple(rows[: request.limit]), more=len(rows) > request.limit)


def _existing_node(graph: KnowledgeGraph, name: str) -> str:
    if name not in graph.nodes:
        raise UnknownNameError("node", name, graph.nodes)
    return name


def _create_row(graph: KnowledgeGraph, id_: str, **fields: object) -> QueryRow:
    node = graph.nodes[id_]
    return QueryRow.model_validate({"node": id_, "kind": node.kind, "text": node.text, **fields})


def _create_step_row(graph: KnowledgeGraph, step: _Step) -> QueryRow:
    return _create_row(graph, step.end, edge=step.edge, relation=graph.edges[step.edge].relation, towards=step.towards)


def _find_neighbors(graph: KnowledgeGraph, request: GraphQuery) -> list[QueryRow]:
    """Return one row per edge at depth 1, or one row per node, nearest first, at a greater depth."""
    start = _existing_node(graph, request.node)
    if request.depth == 1:
        return [_create_step_row(graph, step) for step in _find_steps(graph, start, request)]
    depths = {start: 0}
    queue = [start]
    for node in queue:
        if depths[node] == request.depth:
            break
        for step in _find_steps(graph, node, request):
            if step.end not in depths:
                depths[step.end] = depths[node] + 1
                queue.append(step.end)
    ranking = sorted((depth, node) for node, depth in depths.items() if depth)
    return [_create_row(graph, node, depth=depth) for depth, node in ranking]


def _find_steps(graph: KnowledgeGraph, node: str, request: GraphQuery) -> list[_Step]:
    """Return the steps from a node that the request allows."""
    steps = []
    if request.direction != "in":
        steps += [_Step(end, key, "out") for _, end, key in sorted(graph.network.out_edges(node, keys=True))]
    if request.direction != "out":
        steps += [
            _Step(end, key, "in")
            for end, _, key in sorted(graph.network.in_edges(node, keys=True))
            if request.direction == "in" or graph.edges[key].relation != "CONTRADICTS"  # stored in both directions
        ]
    return [step for step in steps if not request.relations or graph.edges[step.edge].relation in request.relations]


def _find_path(graph: KnowledgeGraph, request: GraphQuery) -> list[QueryRow]:
    """Return the nodes of a shortest path, or an empty list. If there are several, return the first by name."""
    start, end = _existing_node(graph, request.node), _existing_node(graph, request.to)
    start_row = _create_row(graph, start)
    arrivals: dict[str, tuple[str, QueryRow]] = {start: ("", start_row)}  # node → the node before it, row
    queue = [start]
    for node in queue:
        if node == end:
            break
        steps = _find_steps(graph, node, request)
        for step in sorted(steps, key=lambda step: (step.end, step.towards == "in", step.edge)):
            if step.end not in arrivals:
                arrivals[step.end] = node, _create_step_row(graph, step)
                queue.append(step.end)
    rows, node = [], end
    while node in arrivals:
        node, row = arrivals[node]
        rows.append(row)
    return rows[::-1]


def _rank_by_walk(graph: KnowledgeGraph, request: GraphQuery) -> list[QueryRow]:
    """Compute personalised PageRank by power iteration, exact to ACCURACY."""
    if request.relations or request.direction == "in":
        raise ConfigError("ppr follows all relations, in the direction both or out; remove these options")
    start = _existing_node(graph, request.node)
    neighbors = cache(lambda node: _neighbor_counts(graph, node, undirected=request.direction == "both"))
    shares = {start: 1.0}
    for _ in range(ITERATIONS):
        new_shares = {start: RESTART}
        for node, share in shares.items():
            targets = neighbors(node) or Counter({start: 1})  # a walk that cannot continue returns to its start
            for target, count in targets.items():
                new_shares[target] = new_shares.get(target, 0.0) + (1 - RESTART) * share * count / targets.total()
        shares = new_shares
    ranking = sorted(shares.items(), key=lambda item: (-item[1], item[0]))
    ranking = ranking[: request.limit + 2]  # with the start, which is not returned, and one row to show that more exist
    return [_create_row(graph, node, score=share) for node, share in ranking if node != start]


def _neighbor_counts(graph: KnowledgeGraph, node: str, *, undirected: bool) -> Counter[str]:
    """Return each neighbour with the number of edges to it, and from it if `undirected`."""
    keys = {(dst, key) for _, dst, key in graph.network.out_edges(node, keys=True)}
    if undirected:
        keys |= {(src, key) for src, _, key in graph.network.in_edges(node, keys=True)}
    return Counter(neighbor for neighbor, _ in sorted(keys))


def _search_nodes(graph: KnowledgeGraph, request: GraphQuery) -> list[QueryRow]:
    """Return nodes by the number of matching words in their id or text."""
    words = _split_words(request.node)
    counts = {node.id: len(words & _split_words(f"{node.id} {node.text}")) for node in graph.nodes.values()}
    ranking = sorted((-count, node) for node, count in counts.items() if count)
    return [_create_row(graph, node, score=-negative_count) for negative_count, node in ranking]


def _split_words(text: str) -> set[str]:
    return set(re.findall(r"\w+", text.lower().replace("_", " ")))
