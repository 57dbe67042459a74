"""A control for experiments: the graph with its remedies' targets permuted, all else unchanged.

What it does as well as the true graph is not owed to what the graph knows (Fu et al. 2023, arXiv 2311.01150: random
triples often serve as well as aligned ones).
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from oven_kg.graph.graph_yaml import Edge, Records

PERMUTED: Final = ("SOLVES", "PREVENTS", "WORSENS")
ROUNDS: Final = 10
"""Swaps tried for each edge: the usual factor for degree-preserving randomisation (Milo et al. 2003,
arXiv cond-mat/0312028)."""


def shuffled(records: Records, seed: int) -> Records:
    """Two edges of one relation exchange their targets, many times over. Every node keeps its degree by relation, every
    edge its remedy, strength, grade and source. Targets are exchanged only between nodes of one kind and one phase, so
    that a remedy speaks as often in each kind of run as before; and never so that an edge would stand twice, or that a
    remedy would both solve and worsen one thing. The same seed, the same graph.
    """
    rng = Random(f"shuffled {seed}")
    nodes = {node.id: node for node in records.nodes}
    edges = list(records.edges)
    pools: dict[tuple[str, str, tuple[str, ...]], list[int]] = {}
    for at, edge in enumerate(edges):
        if edge.relation in PERMUTED:
            target = nodes[edge.dst]
            pools.setdefault((edge.relation, target.kind, target.phase), []).append(at)
    pairs = {(edge.src, edge.dst, edge.relation) for edge in edges if edge.relation in PERMUTED}
    for _, pool in sorted(pools.items()):
        for _ in range(ROUNDS * len(pool) if len(pool) > 1 else 0):
            one, other = rng.sample(pool, 2)
            mine, theirs = edges[one], edges[other]
            if mine.dst == theirs.dst or mine.src == theirs.src:
                continue
            swapped = (replace(mine, dst=theirs.dst), replace(theirs, dst=mine.dst))
            if not any(_clashes(edge, pairs) for edge in swapped):
                edges[one], edges[other] = swapped
                pairs -= {_pair(mine), _pair(theirs)}
                pairs |= {_pair(edge) for edge in swapped}
    return replace(records, edges=tuple(edges))


def _pair(edge: Edge) -> tuple[str, str, str]:
    return edge.src, edge.dst, edge.relation


def _clashes(edge: Edge, pairs: set[tuple[str, str, str]]) -> bool:
    barred = ("SOLVES", "PREVENTS") if edge.relation == "WORSENS" else ("WORSENS",)
    return any((edge.src, edge.dst, relation) in pairs for relation in (edge.relation, *barred))
