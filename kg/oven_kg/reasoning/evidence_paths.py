"""Evidence paths: ways through the graph in words, with their sources and weakest grade."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final, Literal, cast

from oven_controller.protocol.requests import EvidencePath
from oven_kg.graph.graph_yaml import Edge
from oven_kg.graph.knowledge import Knowledge

WEAKEST_LAST: Final = "ABDC"
"""A controlled ablation, reported at scale, measured here on one small task, practice."""


def path(graph: Knowledge, edges: Sequence[Edge], remark: str = "") -> EvidencePath:
    """`edges` lead on from one node to the next, read against their direction: loss_spike ← CAUSES ← lr_too_high ←
    SOLVES ← lower_lr. Needs and a contradiction are read along it.
    """
    if edges[0].relation in ("REQUIRES", "CONTRADICTS"):
        text = edges[0].src + "".join(f" → {edge.relation} → {edge.dst}" for edge in edges)
    else:
        text = edges[0].dst + "".join(f" ← {edge.relation} ← {edge.src}" for edge in edges)
    remedy = graph.nodes[edges[-1].src]
    if len(remedy.changes) > 1:
        text += f" ({' with '.join(remedy.changes)})"
    return EvidencePath(
        edges=tuple(edge.id for edge in edges),
        text=f"{text} ({remark})" if remark else text,
        grade=weakest(edges),
        sources=tuple(dict.fromkeys(edge.source for edge in edges)),
    )


def weakest(edges: Sequence[Edge]) -> Literal["A", "B", "C", "D"]:
    grade = max((edge.grade for edge in edges), key=WEAKEST_LAST.index)
    return cast('Literal["A", "B", "C", "D"]', grade)
