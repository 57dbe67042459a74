"""Computes the share of each training topic, from its mastery and the prerequisites among topics.

A topic's mastery is a Beta distribution of its success rate p, with the mean p̂. It follows from a flat prior and the
counted answers. The topic's weight is its learnability p̂(1 − p̂) (Rutherford et al. 2024, arXiv 2408.15099). At
p̂ ≈ ½, the samples of a group differ most, so a comparison teaches most (Bae et al. 2025, arXiv 2504.03380). The weight
is 0 until all of the topic's prerequisites are mastered: the lower bound of their p must reach the threshold. An even
floor keeps every topic in the data, because otherwise no answers would show that a topic has become easy.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Final, TypeAlias

from oven_core.protocol.graph_requests import Curriculum, CurriculumRequest, Mastery, UnmetPrerequisite
from oven_kg.graph.knowledge_graph import KnowledgeGraph

if TYPE_CHECKING:
    from oven_kg.arrays.graph_arrays import GraphArrays  # imports numpy, which the built-in graph does not need

REQUIRES: Final = "REQUIRES"
"""The relation from a topic to its prerequisite."""
MAX_PREREQUISITES: Final = 1_000
"""Maximum number of a topic's direct and indirect prerequisites, because some graphs have endless chains."""
CONFIDENCE: Final = 1.645
"""Standard normal quantile of the one-sided 95 % bound."""

Prerequisites: TypeAlias = Callable[[str], Iterable[str]]
"""A function that returns a topic's direct prerequisites."""


def curriculum(sha: str, graph_prerequisites: Prerequisites, request: CurriculumRequest) -> Curriculum:
    """Return each topic's share, and the unmet prerequisites. `graph_prerequisites` looks up REQUIRES edges of the
    graph with the hash `sha`. They add to the prerequisites in the request. Prerequisites are transitive, but only the
    nearest MAX_PREREQUISITES of a topic count. A prerequisite without a mastery in the request blocks no topic, because
    the run cannot master a topic that it does not train. In a cycle, no topic waits for itself."""
    mastery = {topic_mastery.topic: topic_mastery for topic_mastery in request.mastery}
    own_prerequisites: dict[str, list[str]] = {}  # those in the request
    for topic, prerequisite in request.prerequisites:
        own_prerequisites.setdefault(topic, []).append(prerequisite)
    prerequisites = cache(lambda topic: sorted({*graph_prerequisites(topic), *own_prerequisites.get(topic, ())}))
    learnability: dict[str, float] = {}
    unmet: list[UnmetPrerequisite] = []
    known_count = 0
    for topic in sorted(mastery):
        paths = [path for path in _prerequisite_paths(topic, prerequisites) if path[-1] in mastery]
        known_count += len(paths)
        topic_unmet = [
            UnmetPrerequisite(topic=topic, path=path, bound=bound)
            for path in paths
            if (bound := lower_bound(mastery[path[-1]])) < request.threshold
        ]
        p = mean(mastery[topic])
        learnability[topic] = 0.0 if topic_unmet else p * (1 - p)
        unmet += topic_unmet
    total = math.fsum(learnability.values())
    floor = request.floor if total > 0 else 1.0
    even_share = floor / len(learnability)
    shares = {topic: value / total if total > 0 else 0.0 for topic, value in learnability.items()}
    weights = {topic: even_share + (1 - floor) * share for topic, share in shares.items()}
    return Curriculum(graph=sha, weights=weights, unmet=tuple(unmet), known=known_count)


def requirements(graph: KnowledgeGraph) -> Prerequisites:
    """Return a function that looks up the REQUIRES edges of a graph."""
    return lambda topic: (edge.dst for edge in graph.edges_out_of(topic, REQUIRES))


def requirements_in_arrays(arrays: GraphArrays) -> Prerequisites:
    """Return a function that looks up the REQUIRES edges of a large graph."""
    if REQUIRES not in arrays.relations:
        return lambda topic: ()
    requires = arrays.relations.index(REQUIRES)

    def prerequisites(topic: str) -> list[str]:
        if topic not in arrays:
            return []
        ends, relations, _ = arrays.outgoing(arrays.index(topic))
        return arrays.names(ends[relations == requires])

    return prerequisites


def mean(mastery: Mastery) -> float:
    """Return p̂, the mean of the Beta distribution."""
    return (mastery.successes + 1) / (mastery.successes + mastery.failures + 2)


def lower_bound(mastery: Mastery) -> float:
    """Return the one-sided 95 % lower bound of p, at least 0. This is Wilson's score bound (Wilson 1927) for the counts
    plus one success and one failure from the flat prior."""
    n, p, z = mastery.successes + mastery.failures + 2, mean(mastery), CONFIDENCE
    centre = p + z * z / (2 * n)
    spread = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, (centre - spread) / (1 + z * z / n))


def _prerequisite_paths(topic: str, prerequisites: Prerequisites) -> list[tuple[str, ...]]:
    """Return the shortest path to each of the nearest MAX_PREREQUISITES, breadth first, by name."""
    paths: dict[str, tuple[str, ...]] = {}
    queue: list[tuple[str, ...]] = [(topic,)]
    for path in queue:
        for prerequisite in prerequisites(path[-1]):
            if prerequisite not in paths and prerequisite != topic:
                if len(paths) == MAX_PREREQUISITES:
                    return list(paths.values())
                paths[prerequisite] = (*path, prerequisite)
                queue.append(paths[prerequisite])
    return list(paths.values())
