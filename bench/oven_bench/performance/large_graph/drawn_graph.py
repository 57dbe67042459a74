"""A random graph with hubs, and the nodes that the bench asks about."""

from __future__ import annotations

from typing import Final

import numpy as np

from oven_kg.arrays.builder import Builder
from oven_kg.arrays.graph_arrays import GraphArrays

RELATIONS: Final = ("CAUSES", "CONTRADICTS", "IS_A", "RELATED_TO", "REQUIRES", "SOLVES", "USED_FOR")
OUT_SKEW: Final = 1.5
"""Edges leave node N × u^1.5, where u is uniform. With 500,000 nodes and 3,000,000 edges, one node has 480 of them."""
IN_SKEW: Final = 3.0
"""They end at N × u³, in another order of the nodes. The largest hub then has 38,000 edges in, like ConceptNet's."""
BATCH: Final = 50_000


def draw(nodes: int, edges: int, seed: int) -> GraphArrays:
    """A graph of all nodes, even those without an edge. Edges that are drawn twice count once."""
    draw = np.random.default_rng(seed)
    names = [f"/c/en/concept_{number}" for number in range(nodes)]
    leaves, ends = draw.permutation(nodes), draw.permutation(nodes)
    builder = Builder()
    builder.declare(names)
    for first in range(0, edges, BATCH):
        count = min(BATCH, edges - first)
        sources = leaves[(nodes * draw.random(count) ** OUT_SKEW).astype(np.int64)]
        targets = ends[(nodes * draw.random(count) ** IN_SKEW).astype(np.int64)]
        builder.edges(
            [names[node] for node in sources],
            [RELATIONS[number] for number in draw.integers(0, len(RELATIONS), count)],
            [names[node] for node in targets],
            1 - draw.random(count),  # above 0
        )
    return builder.finish()


def drawn_nodes(arrays: GraphArrays, count: int, seed: int) -> list[str]:
    """Names of different nodes that have an edge out."""
    begins = np.flatnonzero(np.diff(arrays.indptr))
    draw = np.random.default_rng(seed)
    return arrays.names(draw.choice(begins, min(count, len(begins)), replace=False))
