"""Token scores from a graph: the PageRank of its nodes, distributed over the tokens of their labels.

This follows the source experiment, which had a graph's scores on 358 tokens in under a kilobyte. A token's score is the
mass that its nodes give it, times log((1 + N) / (1 + df)), where df is the number of nodes whose label contains it.
Without that factor a handful of letters and dots would have most of the mass.
"""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from types import MappingProxyType
from typing import Final, TypeAlias

TYPES: Final[Mapping[str, float]] = MappingProxyType(
    {"CAUSES": 1.0, "SOLVES": 1.0, "REQUIRES": 0.7, "IS_A": 0.7, "CONTRADICTS": 0.5, "CONTAINS": 0.2}
)
"""Relation → weight of its edges."""
OTHER: Final = 0.5
"""Weight of an edge of any other relation."""
BACK: Final = 0.3
"""Factor for an edge against its direction."""
DAMPING: Final = 0.85
ACCURACY: Final = 1e-10
"""Bound on the distance to the true ranks, as the sum of absolute differences."""
ITERATIONS: Final = math.ceil(math.log(ACCURACY / 2) / math.log(DAMPING))
"""Enough for this accuracy on any graph: each iteration shrinks the distance, at most 2, by the damping."""
PREFIXES: Final = ("", " ")
"""The contexts of a word: at the beginning of a text, and within one."""

Encode: TypeAlias = Callable[[str], Sequence[int]]
"""A tokenizer: text → tokens."""


def pagerank(count: int, edges: Iterable[tuple[int, int, float]]) -> list[float]:
    """Ranks of the nodes 0 to count − 1; they sum to 1. A node without an edge out distributes its rank to all nodes.

    This is power iteration in plain Python, some 0.2 µs per edge and iteration: the built-in graph has a few hundred
    nodes, and its service does not load numpy for them. For a large graph there is `oven_kg.arrays.random_walk`.
    """
    out: list[dict[int, float]] = [{} for _ in range(count)]
    for src, dst, weight in edges:
        out[src][dst] = out[src].get(dst, 0.0) + weight
    into: list[list[tuple[int, float]]] = [[] for _ in range(count)]
    for src, targets in enumerate(out):
        total = sum(targets.values())
        for dst, weight in targets.items():
            into[dst].append((src, weight / total))
    dead_ends = [src for src, targets in enumerate(out) if not targets]
    ranks = [1 / count] * count
    for _ in range(ITERATIONS):
        restart = (1 - DAMPING + DAMPING * sum(ranks[src] for src in dead_ends)) / count
        after = [restart + DAMPING * sum(ranks[src] * share for src, share in row) for row in into]
        moved = sum(abs(old - new) for old, new in zip(ranks, after, strict=True))
        ranks = after
        if moved * DAMPING <= ACCURACY * (1 - DAMPING):
            break
    return ranks


def node_importance(nodes: Sequence[str], triples: Iterable[tuple[str, str, str]]) -> dict[str, float]:
    """Node → importance, 1 on average. `triples`: (source, relation, target); one that occurs n times has the factor
    log(1 + n)."""
    index = {node: number for number, node in enumerate(nodes)}
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
    """Token → score. `labels`: node → its labels. A node's labels share its importance evenly, and a label's tokens
    share the label's."""
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
    """The k highest, with scores linear in their rank: 1 for the first, 1/k for the last."""
    ranked = sorted((id_ for id_, score in scores.items() if score > 0), key=lambda id_: (-scores[id_], id_))[:k]
    return {id_: 1 - rank / len(ranked) for rank, id_ in enumerate(ranked)}


def words(id_: str, text: str) -> Iterator[str]:
    """The words of a node's id and text, each with every prefix."""
    for word in dict.fromkeys(re.findall(r"\w+", f"{id_} {text}".replace("_", " "))):
        for prefix in PREFIXES:
            yield prefix + word


class LongestMatch:
    """Splits a text into the longest tokens that match, from the left: close to what a tokenizer does, without being
    one. Characters that no token covers are skipped."""

    def __init__(self, vocabulary: Sequence[str]) -> None:
        """`vocabulary`: the tokens' texts by id; of equal texts the first id counts."""
        self._ids = {text: id_ for id_, text in reversed(list(enumerate(vocabulary))) if text}
        self._longest = max(map(len, self._ids), default=0)

    def __call__(self, text: str) -> list[int]:
        ids, position = [], 0
        while position < len(text):
            for length in range(min(self._longest, len(text) - position), 0, -1):
                if (id_ := self._ids.get(text[position : position + length])) is not None:
                    ids.append(id_)
                    position += length
                    break
            else:
                position += 1
        return ids
