"""What a large graph holds, in a few numbers."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np

from oven_kg.large.arrays import Arrays


@dataclass(frozen=True, slots=True)
class Summary:
    graph: str
    """SHA-256 of the content."""
    nodes: dict[str, int]
    """Kind → nodes; "" for those of which none is said."""
    edges: dict[str, int]
    """Relation → edges."""
    isolated: float
    """Share of the nodes that no edge joins to another: mere labels."""
    licence: str
    """"" if unsaid."""


def summary(arrays: Arrays) -> Summary:
    kinds = np.bincount(arrays.kinds, minlength=len(arrays.kind_names)).tolist()
    relations = np.bincount(arrays.rel, minlength=len(arrays.relations)).tolist()
    return Summary(
        graph=arrays.sha,
        nodes={name: count for name, count in zip(arrays.kind_names, kinds, strict=True) if count},
        edges={name: count for name, count in zip(arrays.relations, relations, strict=True) if count},
        isolated=arrays.isolated / max(1, arrays.nodes),
        licence=arrays.licence,
    )
