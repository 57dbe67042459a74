"""A control for experiments: the graph with the targets of its remedies permuted, all else unchanged.

If the control performs as well as the graph, the gain does not come from the graph's knowledge (Fu et al. 2023,
arXiv 2311.01150: random triples often serve as well as aligned ones).
"""

from __future__ import annotations

from dataclasses import replace
from random import Random
from typing import Final

from oven_kg.graph.graph_yaml import Edge, Records

PERMUTED: Final = ("SOLVES", "PREVENTS", "WORSENS")
ROUNDS: Final = 10
"""Attempted swaps per edge: the usual factor for degree-preserving randomisation (Milo et al. 2003,
arXiv cond-mat/0312028)."""


def shuffle_targets(records: Records, seed: int) -> Records:
    """Swap the targets of two edges of one relation, many times. The same seed gives the same graph.

    Every node keeps its degree by relation, and every edge its remedy, strength, grade and source. Targets are swapped
    only between nodes of one kind and one phase, so that a remedy applies as often in each kind of run as before. No
    edge is duplicated, and no remedy both solves and worsens one thing.
    """
    rng = Random(f"shuffled {seed}")
    nodes = {node.id: node for node in records.nodes}
    edges = list(records.edges)
    pools: dict[tuple[str, str, tuple[str, ...]], list[int]] = {}
    for number, edge in enumerate(edges):
        if edge.relation in PERMUTED:
            target = nodes[edge.dst]
            pools.setdefault((edge.relation, target.kind, target.phase), []).append(number)
    triples = {_triple(edge) for edge in edges if edge.relation in PERMUTED}
    for _, pool in sorted(pools.items()):
        for _ in range(ROUNDS * len(pool) if len(pool) > 1 else 0):
            first, second = rng.sample(pool, 2)
            mine, theirs = edges[first], edges[second]
            if mine.dst == theirs.dst or mine.src == theirs.src:
                continue
            swapped = (replace(mine, dst=theirs.dst), replace(theirs, dst=mine.dst))
            if not any(_clashes(edge, triples) for edge in swapped):
                edges[first], edges[second] = swapped
                triples -= {_triple(mine), _triple(theirs)}
                triples |= {_triple(edge) for edge in swapped}
    return replace(records, edges=tuple(edges))


def _triple(edge: Edge) -> tuple[str, str, str]:
    return edge.src, edge.dst, edge.relation


def _clashes(edge: Edge, triples: set[tuple[str, str, str]]) -> bool:
    opposite = ("SOLVES", "PREVENTS") if edge.relation == "WORSENS" else ("WORSENS",)
    return any((edge.src, edge.dst, relation) in triples for relation in (edge.relation, *opposite))
