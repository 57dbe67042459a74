"""Token scores from a large graph: those of oven_kg.token_prior.label_scores, with the loops over nodes in numpy.

A name's words are cut into tokens once each, however many names have them.
"""

from __future__ import annotations

import math
from typing import Any

import numpy as np
from numpy.typing import NDArray
from scipy import sparse

from oven_kg.large.arrays import Arrays
from oven_kg.token_prior.label_scores import ACCURACY, BACK, DAMPING, OTHER, TYPES, Encode, words


def name_scores(arrays: Arrays, encode: Encode) -> dict[int, float]:
    """Token → score, from the importance of the nodes in whose names it is."""
    return token_scores(arrays, node_importance(arrays), encode)


def node_importance(arrays: Arrays) -> NDArray[np.float64]:
    """(N,): importance, 1 on average. An edge counts by its relation times log(1 + its weight), and BACK of that
    against its direction; ranks are accurate to ACCURACY in all."""
    count = arrays.nodes
    if not count:
        return np.empty(0)
    types = np.array([TYPES.get(name, OTHER) for name in arrays.relations] or [0.0])
    along = _matrix(types, arrays.in_rel, arrays.in_weight, arrays.in_src, arrays.in_indptr)
    against = _matrix(types, arrays.rel, arrays.weight, arrays.dst, arrays.indptr)
    total = against.sum(axis=1) + BACK * along.sum(axis=1)
    per_weight = np.divide(1.0, total, out=np.zeros(count), where=total > 0)
    ends, ranks, moved = total == 0, np.full(count, 1 / count), 1.0
    # Each iteration shrinks the distance to the true ranks by the damping, so what it moves bounds what is left.
    while moved > ACCURACY * (1 - DAMPING) / DAMPING:
        given = ranks * per_weight
        after = DAMPING * (along @ given + BACK * (against @ given))
        after += (DAMPING * ranks[ends].sum() + 1 - DAMPING) / count
        moved, ranks = float(np.abs(after - ranks).sum()), after
    return ranks * count


def _matrix(
    types: NDArray[Any], rel: NDArray[Any], weight: NDArray[Any], ends: NDArray[Any], indptr: NDArray[Any]
) -> sparse.csr_array:
    """(N, N): what the edges of each row weigh."""
    count = len(indptr) - 1
    weights = types[rel] * np.log1p(weight.astype(np.float64))
    return sparse.csr_array((weights, ends, indptr.astype(np.int32)), shape=(count, count))


def token_scores(arrays: Arrays, importance: NDArray[np.float64], encode: Encode) -> dict[int, float]:
    """Token → score, as oven_kg.token_prior.label_scores.token_scores has it for the words of the nodes' names."""
    numbers: dict[str, int] = {}
    texts, lengths = [], np.zeros(arrays.nodes, np.int64)
    for node in range(arrays.nodes):
        own = [numbers.setdefault(text, len(numbers)) for text in words(arrays.name(node), "")]
        texts.extend(own)
        lengths[node] = len(own)
    of_node = sparse.csr_array(
        (np.ones(len(texts)), np.array(texts, np.int32), np.concatenate([[0], np.cumsum(lengths)])),
        shape=(arrays.nodes, len(numbers)),
    )
    share = np.divide(importance, lengths, out=np.zeros(arrays.nodes), where=lengths > 0)
    tokens: list[int] = []
    per_token: list[float] = []
    sizes = np.zeros(len(numbers), np.int64)
    for text, number in numbers.items():
        ids = encode(text)
        tokens.extend(ids)
        sizes[number] = len(ids)
        per_token.extend([1 / len(ids)] * len(ids) if ids else ())
    width = max(tokens, default=-1) + 1
    of_text = sparse.csr_array(
        (np.array(per_token), np.array(tokens, np.int32), np.concatenate([[0], np.cumsum(sizes)])),
        shape=(len(numbers), width),
    )
    mass = of_text.T @ (of_node.T @ share)
    held = (of_node @ of_text).tocsc()  # a node's row has each of its tokens once
    counts = np.diff(held.indptr)
    return {
        int(id_): float(mass[id_]) * math.log((1 + arrays.nodes) / (1 + int(counts[id_])))
        for id_ in np.flatnonzero(counts)
    }
