"""Token scores from a large graph: as in oven_kg.token_prior.label_scores, with numpy instead of loops over nodes."""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from oven_kg.arrays.graph_arrays import GraphArrays
from oven_kg.arrays.random_walk import pagerank
from oven_kg.token_prior.label_scores import ACCURACY, BACK, OTHER, TYPES, Encode, words


def name_scores(arrays: GraphArrays, encode: Encode) -> dict[int, float]:
    """Token → score, from the importance of the nodes whose names contain it."""
    return token_scores(arrays, node_importance(arrays), encode)


def node_importance(arrays: GraphArrays) -> NDArray[np.float64]:
    """(N,): PageRank, 1 on average. An edge weighs its relation's weight times log(1 + its own weight), and BACK times
    that against its direction."""
    types = np.array([TYPES.get(name, OTHER) for name in arrays.relations] or [0.0])
    along = _matrix(types, arrays.in_rel, arrays.in_weight, arrays.in_src, arrays.in_indptr)
    against = _matrix(types, arrays.rel, arrays.weight, arrays.dst, arrays.indptr)
    return pagerank(along + BACK * against, accuracy=ACCURACY) * arrays.nodes


def _matrix(
    types: NDArray[Any], rel: NDArray[Any], weight: NDArray[Any], ends: NDArray[Any], indptr: NDArray[Any]
) -> sparse.csr_array:
    """(N, N): the weight of each row's edges."""
    count = len(indptr) - 1
    weights = types[rel] * np.log1p(weight.astype(np.float64))
    return sparse.csr_array((weights, ends, indptr.astype(np.int32)), shape=(count, count))


def token_scores(arrays: GraphArrays, importance: NDArray[np.float64], encode: Encode) -> dict[int, float]:
    """Token → score, as `label_scores.token_scores` computes it from the words of the nodes' names.

    Each word is tokenized once, however many names contain it.
    """
    word_numbers: dict[str, int] = {}
    node_words, word_counts = [], np.zeros(arrays.nodes, np.int64)
    for node in range(arrays.nodes):
        own = [word_numbers.setdefault(word, len(word_numbers)) for word in words(arrays.name(node), "")]
        node_words.extend(own)
        word_counts[node] = len(own)
    tokens: list[int] = []
    shares: list[float] = []
    token_counts = np.zeros(len(word_numbers), np.int64)
    for word, number in word_numbers.items():
        ids = encode(word)
        tokens.extend(ids)
        token_counts[number] = len(ids)
        shares.extend([1 / len(ids)] * len(ids) if ids else ())
    of_node = _rows(np.ones(len(node_words)), node_words, word_counts, len(word_numbers))
    of_word = _rows(np.array(shares), tokens, token_counts, max(tokens, default=-1) + 1)
    per_word = np.divide(importance, word_counts, out=np.zeros(arrays.nodes), where=word_counts > 0)
    mass = of_word.T @ (of_node.T @ per_word)
    nodes_per_token = np.diff((of_node @ of_word).tocsc().indptr)
    return {
        int(id_): float(mass[id_]) * math.log((1 + arrays.nodes) / (1 + int(nodes_per_token[id_])))
        for id_ in np.flatnonzero(nodes_per_token)
    }


def _rows(values: NDArray[np.float64], columns: list[int], lengths: NDArray[np.int64], width: int) -> sparse.csr_array:
    """(len(lengths), width): a sparse matrix whose row i has the next `lengths[i]` of the values."""
    indptr = np.concatenate([[0], np.cumsum(lengths)])
    return sparse.csr_array((values, np.array(columns, np.int32), indptr), shape=(len(lengths), width))
