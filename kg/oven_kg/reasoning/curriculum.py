"""Which topics to train on, from how well each is mastered and what builds on what.

A topic's weight is its learnability p̂(1 − p̂) (Rutherford et al. 2024, arXiv 2408.15099; p̂ ≈ ½ is where a group of
samples has something to compare: Bae et al. 2025, arXiv 2504.03380), and 0 while one of its prerequisites is not
mastered; an even floor keeps every topic in play, for without answers no one would learn that it has become easy.
Mastery is a Beta of a flat prior and the counts: p̂ its mean, and a prerequisite counts as mastered when the lower bound
of p reaches the threshold.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Iterable
from functools import cache
from typing import TYPE_CHECKING, Final, TypeAlias

from oven_core.protocol.graph_requests import Curriculum, CurriculumRequest, Mastery, UnmetPrerequisite
from oven_kg.graph.knowledge import Knowledge

if TYPE_CHECKING:
    from oven_kg.arrays.graph_arrays import (
        GraphArrays,  # brings numpy, which the service on the built-in graph goes without
    )

REQUIRES: Final = "REQUIRES"
"""The relation of a topic to what it builds on."""
REACH: Final = 1_000
"""Prerequisites of a topic that are looked at, however far: a graph of common knowledge has chains without end."""
CONFIDENCE: Final = 1.645
"""Standard normal quantile of the one-sided 95 % bound."""


Needs: TypeAlias = Callable[[str], Iterable[str]]
"""A topic → what it builds on directly."""


def curriculum(sha: str, of_graph: Needs, asked: CurriculumRequest) -> Curriculum:
    """Prerequisites are the graph's (`sha`, and its REQUIRES edges `of_graph`) and the request's own, and theirs in
    turn. One of which nothing was asked (no mastery is known) holds no one up: what is not trained here cannot be
    mastered here. Circles hold no one up either: in them every topic would wait for itself. Of a topic with more, the
    nearest REACH count."""
    known = {mastery.topic: mastery for mastery in asked.mastery}
    sent: dict[str, list[str]] = {}
    for topic, need in asked.prerequisites:
        sent.setdefault(topic, []).append(need)
    needs = cache(lambda topic: sorted({*of_graph(topic), *sent.get(topic, ())}))
    raw: dict[str, float] = {}
    unmet: list[UnmetPrerequisite] = []
    count = 0
    for topic, mastery in sorted(known.items()):
        ways = [way for way in _ways(topic, needs) if way[-1] in known]
        count += len(ways)
        short = [
            UnmetPrerequisite(topic=topic, path=way, bound=bound)
            for way in ways
            if (bound := lower_bound(known[way[-1]])) < asked.threshold
        ]
        p = mean(mastery)
        raw[topic] = 0.0 if short else p * (1 - p)
        unmet += short
    total = math.fsum(raw.values())
    floor = asked.floor if total > 0 else 1.0
    even = floor / len(raw)
    weights = {topic: even + (1 - floor) * (value / total if total > 0 else 0.0) for topic, value in raw.items()}
    return Curriculum(graph=sha, weights=weights, unmet=tuple(unmet), known=count)


def required(graph: Knowledge) -> Needs:
    """What each node of the graph REQUIRES."""
    found: dict[str, list[str]] = {}
    for edge in graph.edges.values():
        if edge.relation == REQUIRES:
            found.setdefault(edge.src, []).append(edge.dst)
    return lambda topic: found.get(topic, ())


def required_in(arrays: GraphArrays) -> Needs:
    """What each node of a large graph REQUIRES; of a topic that it does not have, nothing is known."""
    if REQUIRES not in arrays.relations:
        return lambda topic: ()
    wanted = arrays.relations.index(REQUIRES)

    def needs(topic: str) -> list[str]:
        try:
            ends, relations, _ = arrays.out(arrays.index(topic))
        except KeyError:
            return []
        return arrays.names(ends[relations == wanted])

    return needs


def mean(mastery: Mastery) -> float:
    return (mastery.successes + 1) / (mastery.successes + mastery.failures + 2)


def lower_bound(mastery: Mastery) -> float:
    """Of p, one-sided 95 %: Wilson's score bound (Wilson 1927) on the counts with the flat prior's two added. 0 where
    it would be below."""
    n, p, z = mastery.successes + mastery.failures + 2, mean(mastery), CONFIDENCE
    centre = p + z * z / (2 * n)
    spread = z * math.sqrt(p * (1 - p) / n + z * z / (4 * n * n))
    return max(0.0, (centre - spread) / (1 + z * z / n))


def _ways(topic: str, needs: Needs) -> list[tuple[str, ...]]:
    """The shortest way to each of the nearest REACH prerequisites; breadth first, in order of names."""
    found: dict[str, tuple[str, ...]] = {}
    waiting: list[tuple[str, ...]] = [(topic,)]
    for way in waiting:
        for need in needs(way[-1]):
            if need not in found and need != topic:
                if len(found) == REACH:
                    return list(found.values())
                found[need] = (*way, need)
                waiting.append(found[need])
    return list(found.values())
