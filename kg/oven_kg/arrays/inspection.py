"""The summary and the faults of a large graph, whatever its subject. It need not cite sources, as the built-in one has
to."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Final

import numpy as np

from oven_kg.arrays.graph_arrays import GraphArrays
from oven_kg.arrays.requirement_cycles import find_cycle

MOST_ISOLATED: Final = 0.5
"""Share of nodes without an edge above which a graph is only a list of labels. 500,000 nodes with 121,000 edges, the
counts of the source that this project began with, have at least 0.52."""
SHOWN_NODES: Final = 6
"""Maximum nodes of a cycle in an error message."""


@dataclass(frozen=True, slots=True)
class Summary:
    graph: str
    """SHA-256 of the content."""
    nodes: dict[str, int]
    """Kind → nodes; "" for nodes without a kind."""
    edges: dict[str, int]
    """Relation → edges."""
    isolated: float
    """Share of the nodes without an edge."""
    licence: str
    """"" if unknown."""


def summary(arrays: GraphArrays) -> Summary:
    """Count the nodes by kind and the edges by relation."""
    kinds = np.bincount(arrays.kinds, minlength=len(arrays.kind_names)).tolist()
    relations = np.bincount(arrays.rel, minlength=len(arrays.relations)).tolist()
    return Summary(
        graph=arrays.sha,
        nodes={name: count for name, count in zip(arrays.kind_names, kinds, strict=True) if count},
        edges={name: count for name, count in zip(arrays.relations, relations, strict=True) if count},
        isolated=arrays.isolated / max(1, arrays.nodes),
        licence=arrays.licence,
    )


def faults(arrays: GraphArrays) -> list[str]:
    """One sentence per fault; empty if the graph is sound."""
    sentences = []
    if cycle := find_cycle(arrays):
        sentences.append(
            f"REQUIRES goes in a circle: {cycle_text(arrays, cycle)}; `kg import --cut-cycles` leaves such edges out"
        )
    if "CONTRADICTS" in arrays.relations:
        loops = (arrays.rel == arrays.relations.index("CONTRADICTS")) & (arrays.dst == arrays.sources)
        sentences += [f"{arrays.name(node)!r} contradicts itself" for node in arrays.dst[loops].tolist()]
    if arrays.isolated > MOST_ISOLATED * arrays.nodes:
        sentences.append(f"{arrays.isolated:,} of {arrays.nodes:,} nodes have no edge: they are only labels")
    return sentences


def cycle_text(arrays: GraphArrays, nodes: list[int]) -> str:
    """The names of a cycle's nodes, joined by arrows; only the first ones of a long cycle."""
    return " → ".join(arrays.names(nodes[:SHOWN_NODES])) + (" → …" if len(nodes) > SHOWN_NODES else "")
