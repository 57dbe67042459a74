"""What is wrong with a large graph whatever it is about. It need not cite sources, as the built-in one has to."""

from __future__ import annotations

from typing import Final

import numpy as np

from oven_kg.large.arrays import Arrays
from oven_kg.large.requirements import cycle

MOST_ISOLATED: Final = 0.5
"""Share of nodes without an edge above which a graph is a list of labels: 500,000 nodes with 121,000 edges, as the
source that this project began with counts them, have at least .52."""
SHOWN: Final = 6
"""Nodes of a circle that are named."""


def faults(arrays: Arrays) -> list[str]:
    """Each in a sentence; none if the graph is sound."""
    found = []
    if nodes := cycle(arrays):
        found.append(
            f"REQUIRES goes in a circle: {circle(arrays, nodes)}; `kg import --cut-cycles` leaves such edges out"
        )
    if "CONTRADICTS" in arrays.relations:
        own = (arrays.rel == arrays.relations.index("CONTRADICTS")) & (arrays.dst == arrays.sources)
        found += [f"{arrays.name(node)!r} contradicts itself" for node in arrays.dst[np.flatnonzero(own)].tolist()]
    if arrays.isolated > MOST_ISOLATED * arrays.nodes:
        found.append(
            f"{arrays.isolated:,} of {arrays.nodes:,} nodes have no edge to another: they are labels, and no knowledge"
        )
    return found


def circle(arrays: Arrays, nodes: list[int]) -> str:
    """The names of a circle's nodes, with arrows; of a long one the first."""
    return " → ".join(arrays.names(nodes[:SHOWN])) + (" → …" if len(nodes) > SHOWN else "")
