"""Judgement of one proposed change against what was seen: support, objection, or a bar for now.

Advice moves no one's weight by itself: the verdict goes to the agent, and its paths into the vote. Only an unmet need,
or a contradiction with what is in flight, bars; the mesh bars the same by the run's rules.
"""

from __future__ import annotations

from typing import Final

from oven_core.mesh.change_requirements import covers
from oven_core.protocol.graph_requests import EvidencePath, Judgement, JudgeRequest
from oven_kg.graph.graph_yaml import Node
from oven_kg.graph.knowledge import Knowledge
from oven_kg.reasoning.diagnosis import arguments, path, posterior, severities, unmet, weigh

TELLING: Final = 0.1
"""Log-odds below which the graph is neutral."""


def judge(graph: Knowledge, request: JudgeRequest) -> Judgement:
    """Of several remedies that this change is, or is a part of, the one that speaks most for it is taken; those of
    which the graph has nothing to say do not count."""
    seen = severities(graph, request.symptoms)
    causes = posterior(graph, seen, request.phase)
    weighed = [(weigh(graph, node.id, causes, seen), node.id) for node in _standing_for(graph, request)]
    log_odds, best = max((found for found in weighed if found[0]), default=(0.0, ""))
    against = barring(graph, request)
    verdict = "support" if log_odds >= TELLING else "object" if log_odds <= -TELLING else "neutral"
    return Judgement(
        graph=graph.sha,
        verdict="barred" if against else verdict,
        log_odds=log_odds,
        supports=arguments(graph, best, causes, seen, ("SOLVES", "PREVENTS")) if best else (),
        objections=against + (arguments(graph, best, causes, seen, ("WORSENS",)) if best else ()),
    )


def barring(graph: Knowledge, request: JudgeRequest) -> tuple[EvidencePath, ...]:
    """Why the change may not be made now: its unmet needs, then the contradictions with what is under way."""
    found = []
    for change, needs in graph.requirements.items():
        if covers(change, request.changes):
            missing = unmet(needs, request.actuators, request.metrics, request.held_out)
            found += [path(graph, needs[need], "unmet") for need in missing]
    for pair, edge in graph.contradictions.items():
        for mine, theirs in (pair, pair[::-1]):
            if covers(mine, request.changes):
                flying = [change for change in sorted(request.in_flight) if covers(theirs, change)]
                found += [path(graph, (edge,), f"{change} is in flight") for change in flying]
    return tuple(dict.fromkeys(found))


def _standing_for(graph: Knowledge, request: JudgeRequest) -> list[Node]:
    """The remedies that this change is, or is a part of: then only if the run has the actuators of the other parts."""
    found = []
    for node in graph.of_kind("remedy"):
        if node.applies(request.phase) and any(covers(change, request.changes) for change in node.changes):
            others = {change.partition(":")[0] for change in node.changes if not covers(change, request.changes)}
            if not request.actuators or others.issubset(request.actuators):
                found.append(node)
    return found
