"""A seeded graph with hubs, as large as is asked, and the nodes that are asked about."""

from __future__ import annotations

from typing import Final

import numpy as np

from oven_kg.arrays.builder import Builder
from oven_kg.arrays.graph_arrays import GraphArrays

RELATIONS: Final = ("CAUSES", "CONTRADICTS", "IS_A", "RELATED_TO", "REQUIRES", "SOLVES", "USED_FOR")
OUT_SKEW: Final = 1.5
"""An edge leaves node N × u^1.5, u being even: of 500,000 nodes and 3,000,000 edges the busiest has 480 edges out."""
IN_SKEW: Final = 3.0
"""It ends at N × u³, in another order of the nodes: the largest hub then has 38,000 edges in, about as ConceptNet's."""
BATCH: Final = 50_000


def draw(nodes: int, edges: int, seed: int) -> GraphArrays:
    """At most that many edges: one that is drawn twice counts once. Nodes without an edge are there as well."""
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
    """Names of nodes with an edge out, each at most once."""
    begins = np.flatnonzero(np.diff(arrays.indptr))
    draw = np.random.default_rng(seed)
    return arrays.names(draw.choice(begins, min(count, len(begins)), replace=False))
