"""Random multigraphs twice over: as arrays, and as networkx would have them."""

from __future__ import annotations

import random
from collections.abc import Iterable

import networkx as nx

from oven_kg.large.arrays import Arrays
from oven_kg.large.builder import Builder

Edge = tuple[str, str, str, float]
"""Source, relation, target, weight."""


def drawn(seed: int) -> tuple[dict[str, str], list[Edge]]:
    """Nodes with their kinds, and edges: isolated nodes, loops, parallel edges and ties of weights among them. Each
    twentieth graph is large enough for what is done to large graphs only."""
    rng = random.Random(f"multigraph {seed}")
    nodes, edges = (150, 3_000) if seed % 20 == 0 else (rng.randint(1, 12), rng.randint(0, 40))
    names = [f"{letter}{at}" for at in range(nodes) for letter in rng.choice(["n", "ä", "水"])]
    weights = rng.choice([[1.0], [0.0, 0.5, 1.0, 2.0], [rng.randint(1, 2**20) / 2**17 for _ in range(50)]])
    return {name: rng.choice(["", "person", "thing"]) for name in names}, [
        (rng.choice(names), rng.choice("RQS"), rng.choice(names), rng.choice(weights)) for _ in range(edges)
    ]


def arrays_of(kinds: dict[str, str], edges: Iterable[Edge], licence: str = "CC0-1.0") -> Arrays:
    builder = Builder()
    builder.declare(list(kinds), list(kinds.values()))
    for source, relation, target, weight in edges:
        builder.edges([source], [relation], [target], [weight])
    return builder.finish(licence=licence)


def networkx_of(kinds: dict[str, str], edges: Iterable[Edge]) -> nx.MultiDiGraph:
    """The same graph as someone would make it by hand who adds nodes by name and edges in their order."""
    graph = nx.MultiDiGraph()
    for name in sorted(kinds):
        graph.add_node(name, kind=kinds[name])
    largest: dict[tuple[str, str, str], float] = {}
    for source, relation, target, weight in edges:
        largest[source, target, relation] = max(weight, largest.get((source, target, relation), 0.0))
    for (source, target, relation), weight in sorted(largest.items()):
        graph.add_edge(source, target, key=relation, weight=weight)
    return graph
