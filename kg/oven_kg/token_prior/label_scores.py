"""Token scores from a graph: PageRank of its nodes, handed down to the tokens of their labels.

After the source experiment (a graph's scores on 358 tokens in under a kilobyte). A token's score is the mass that its
nodes give it, times log((1 + N) / (1 + df)), df being the nodes whose label it stands in: without that a handful of
letters and dots would have it all.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

TYPES: Final[Mapping[str, float]] = MappingProxyType(
    {"CAUSES": 1.0, "SOLVES": 1.0, "REQUIRES": 0.7, "IS_A": 0.7, "CONTRADICTS": 0.5, "CONTAINS": 0.2}
)
"""Relation → what an edge of it weighs."""
OTHER: Final = 0.5
"""What an edge of any other relation weighs."""
BACK: Final = 0.3
"""What an edge weighs against its direction."""
DAMPING: Final = 0.85
ACCURACY: Final = 1e-10
"""The most that the ranks are off, as the sum of absolute differences."""
ITERATIONS: Final = math.ceil(math.log(ACCURACY / 2) / math.log(DAMPING))
"""After so many the ranks are that near, whatever the graph: each shrinks the distance, 2 at most, by the damping."""
PREFIXES: Final = ("", " ")
"""How a word may stand: at the beginning of a text, and within one."""

Encode: TypeAlias = Callable[[str], Sequence[int]]
"""A tokenizer: a text's tokens."""


def pagerank(count: int, edges: Iterable[tuple[int, int, float]]) -> list[float]:
    """Ranks of the nodes 0..count − 1; they sum to 1. A node without an edge out hands its rank to all.

    By power iteration in plain Python, some 0.2 µs an edge and iteration: the service's graph has a few hundred nodes,
    and its process does not load numpy for them. A large graph has `oven_kg.arrays.random_walk`.
    """
    out: list[dict[int, float]] = [{} for _ in range(count)]
    for src, dst, weight in edges:
        out[src][dst] = out[src].get(dst, 0.0) + weight
    into: list[list[tuple[int, float]]] = [[] for _ in range(count)]
    for src, ends in enumerate(out):
        total = sum(ends.values())
        for dst, weight in ends.items():
            into[dst].append((src, weight / total))
    lost = [src for src, ends in enumerate(out) if not ends]
    ranks = [1 / count] * count
    for _ in range(ITERATIONS):
        begin = (1 - DAMPING + DAMPING * sum(ranks[src] for src in lost)) / count
        after = [begin + DAMPING * sum(ranks[src] * share for src, share in row) for row in into]
        moved = sum(abs(one - other) for one, other in zip(ranks, after, strict=True))
        ranks = after
        if moved * DAMPING <= ACCURACY * (1 - DAMPING):
            break
    return ranks


def node_importance(nodes: Sequence[str], triples: Iterable[tuple[str, str, str]]) -> dict[str, float]:
    """Node → importance, 1 on average. `triples`: (from, relation, to); one that stands several times counts
    log(1 + n)."""
    index = {node: at for at, node in enumerate(nodes)}
    counts: dict[tuple[str, str, str], int] = {}
    for triple in triples:
        counts[triple] = counts.get(triple, 0) + 1
    edges = []
    for (src, relation, dst), n in sorted(counts.items()):
        weight = TYPES.get(relation, OTHER) * math.log1p(n)
        edges.append((index[src], index[dst], weight))
        edges.append((index[dst], index[src], BACK * weight))
    return {node: rank * len(nodes) for node, rank in zip(nodes, pagerank(len(nodes), edges), strict=True)}


def token_scores(
    importance: Mapping[str, float], labels: Callable[[str], Iterable[str]], encode: Encode
) -> dict[int, float]:
    """Token → score. `labels`: the texts that a node goes by; `encode`: the tokenizer. A label's tokens share its mass
    evenly, and a node's labels share its importance."""
    mass: dict[int, float] = {}
    nodes: dict[int, set[str]] = {}
    for node, value in importance.items():
        texts = list(labels(node))
        for text in texts:
            ids = encode(text)
            for id_ in ids:
                mass[id_] = mass.get(id_, 0.0) + value / (len(texts) * len(ids))
                nodes.setdefault(id_, set()).add(node)
    total = len(importance)
    return {id_: value * math.log((1 + total) / (1 + len(nodes[id_]))) for id_, value in mass.items()}


def top(scores: Mapping[int, float], k: int) -> dict[int, float]:
    """The k highest, linear in their rank: 1 for the first, 1/k for the last."""
    ranked = sorted((id_ for id_, score in scores.items() if score > 0), key=lambda id_: (-scores[id_], id_))[:k]
    return {id_: 1 - at / len(ranked) for at, id_ in enumerate(ranked)}


def words(id_: str, text: str) -> Iterable[str]:
    """The label's words, as they stand at the beginning of a text and within one."""
    for word in dict.fromkeys(re.findall(r"\w+", f"{id_} {text}".replace("_", " "))):
        for prefix in PREFIXES:
            yield prefix + word
