"""Token scores from a graph: each node's PageRank, distributed over the tokens of its label.

A token's score is the sum of its nodes' contributions, times log((1 + N) / (1 + df)). N is the number of nodes, and df
the number of nodes whose label contains the token. Without this factor, a few letters and dots would score highest.
"""

from __future__ import annotations

import math
import re
from collections import Counter
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any, Final

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from oven_kg.arrays.array_builder import Builder
from oven_kg.arrays.graph_arrays import GraphArrays
from oven_kg.arrays.random_walk import pagerank
from oven_kg.graph.knowledge_graph import KnowledgeGraph
from oven_kg.token_prior.token_prior_endpoint import Encode

RELATION_WEIGHTS: Final[Mapping[str, float]] = {
    "CAUSES": 1.0, "SOLVES": 1.0, "REQUIRES": 0.7, "IS_A": 0.7, "CONTRADICTS": 0.5, "CONTAINS": 0.2,
}  # fmt: skip
"""Weight of the edges of each relation."""
DEFAULT_WEIGHT: Final = 0.5
"""Weight of the edges of any other relation."""
BACKWARD_FACTOR: Final = 0.3
"""Factor for following an edge backwards."""
ACCURACY: Final = 1e-10
"""Maximum sum of absolute errors of the ranks."""
PREFIXES: Final = ("", " ")
"""Prefixes of a word at the beginning of a string and within one."""


def label_scores(graph: KnowledgeGraph, encode: Encode) -> dict[int, float]:
    """Return the score of each token, from the importance of the nodes whose id or text contains it."""
    builder = Builder()
    builder.declare(list(graph.nodes))
    edges = list(graph.edges.values())
    builder.add_edges([edge.src for edge in edges], [edge.relation for edge in edges], [edge.dst for edge in edges])
    return name_scores(builder.finish(), encode, lambda name: graph.nodes[name].text)


def name_scores(arrays: GraphArrays, encode: Encode, text_of: Callable[[str], str] = lambda _: "") -> dict[int, float]:
    """Return the score of each token, from the importance of the nodes whose name or text contains it."""
    return token_scores(arrays, node_importance(arrays), encode, text_of)


def node_importance(arrays: GraphArrays) -> NDArray[np.float64]:
    """Return each node's PageRank, (N,), scaled to a mean of 1. An edge counts with its relation's weight times log(1 +
    its own weight), and BACKWARD_FACTOR times as much in the reverse direction. Matrix rows are the ends of steps."""
    relation_weights = np.array([RELATION_WEIGHTS.get(name, DEFAULT_WEIGHT) for name in arrays.relations] or [0.0])
    forward = _weight_matrix(relation_weights, arrays.in_rel, arrays.in_weight, arrays.in_src, arrays.in_indptr)
    backward = _weight_matrix(relation_weights, arrays.rel, arrays.weight, arrays.dst, arrays.indptr)
    return pagerank(forward + BACKWARD_FACTOR * backward, accuracy=ACCURACY) * arrays.nodes


def _weight_matrix(
    relation_weights: NDArray[Any], rel: NDArray[Any], weight: NDArray[Any], ends: NDArray[Any], indptr: NDArray[Any]
) -> sparse.csr_array:
    """Return the edge weights as a matrix, (N, N), with one row per node."""
    count = len(indptr) - 1
    weights = relation_weights[rel] * np.log1p(weight.astype(np.float64))
    return sparse.csr_array((weights, ends, indptr.astype(np.int32)), shape=(count, count))


def token_scores(
    arrays: GraphArrays, importance: NDArray[np.float64], encode: Encode, text_of: Callable[[str], str]
) -> dict[int, float]:
    """Return the score of each token. A node's importance is split evenly over words, then over tokens."""
    encode_word = cache(encode)  # the same word is in many names
    sums: dict[int, float] = {}
    node_counts = Counter[int]()
    for name, value in zip(arrays.names(range(arrays.nodes)), importance.tolist(), strict=True):
        encoded_words = [encode_word(word) for word in words_with_prefixes(name, text_of(name))]
        for ids in encoded_words:
            for id_ in ids:
                sums[id_] = sums.get(id_, 0.0) + value / (len(encoded_words) * len(ids))
        node_counts.update({id_ for ids in encoded_words for id_ in ids})
    return {id_: value * math.log((1 + arrays.nodes) / (1 + node_counts[id_])) for id_, value in sums.items()}


def words_with_prefixes(id_: str, text: str) -> Iterator[str]:
    """Yield the distinct words of a node's id and text, each with every prefix."""
    for word in dict.fromkeys(re.findall(r"\w+", f"{id_} {text}".replace("_", " "))):
        for prefix in PREFIXES:
            yield prefix + word
