"""Judgement of one proposed change against the observed symptoms: support, objection, or a bar for now.

A judgement does not change an agent's vote weight: the verdict goes to the agent, and its paths into the vote. Only an
unmet need, or a contradiction with a change in flight, bars; the mesh bars the same by the run's rules.
"""

from __future__ import annotations

from typing import Final

from oven_core.mesh.change_requirements import covers
from oven_core.protocol.graph_requests import EvidencePath, Judgement, JudgeRequest
from oven_kg.graph.graph_yaml import Node
from oven_kg.graph.knowledge import Knowledge
from oven_kg.reasoning.diagnosis import cause_probabilities, evidence, evidence_path, severities, unmet, weigh

NEUTRAL: Final = 0.1
"""Log-odds below which the graph is neutral."""


def judge(graph: Knowledge, request: JudgeRequest) -> Judgement:
    """If the change belongs to several remedies, the one with the highest log-odds decides. Remedies about which the
    graph has no evidence do not count."""
    symptoms = severities(graph, request.symptoms)
    causes = cause_probabilities(graph, symptoms, request.phase)
    weights = [(weigh(graph, node.id, causes, symptoms), node.id) for node in _remedies(graph, request)]
    log_odds, best = max((weight for weight in weights if weight[0]), default=(0.0, ""))
    bars = barring_paths(graph, request)
    verdict = "support" if log_odds >= NEUTRAL else "object" if log_odds <= -NEUTRAL else "neutral"
    return Judgement(
        graph=graph.sha,
        verdict="barred" if bars else verdict,
        log_odds=log_odds,
        supports=evidence(graph, best, causes, symptoms, ("SOLVES", "PREVENTS")) if best else (),
        objections=bars + (evidence(graph, best, causes, symptoms, ("WORSENS",)) if best else ()),
    )


def barring_paths(graph: Knowledge, request: JudgeRequest) -> tuple[EvidencePath, ...]:
    """Why the change is barred now: its unmet needs, then the contradictions with changes in flight."""
    paths = []
    for change, needs in graph.requirements.items():
        if covers(change, request.changes):
            missing = unmet(needs, request.actuators, request.metrics, request.held_out)
            paths += [evidence_path(graph, needs[need], "unmet") for need in missing]
    for pair, edge in graph.contradictions.items():
        for mine, theirs in (pair, pair[::-1]):
            if covers(mine, request.changes):
                conflicting = [change for change in sorted(request.in_flight) if covers(theirs, change)]
                paths += [evidence_path(graph, (edge,), f"{change} is in flight") for change in conflicting]
    return tuple(dict.fromkeys(paths))


def _remedies(graph: Knowledge, request: JudgeRequest) -> list[Node]:
    """The remedies to which this change belongs, and whose other changes the run has actuators for."""
    remedies = []
    for node in graph.of_kind("remedy"):
        if node.applies(request.phase) and any(covers(change, request.changes) for change in node.changes):
            others = {change.partition(":")[0] for change in node.changes if not covers(change, request.changes)}
            if not request.actuators or others.issubset(request.actuators):
                remedies.append(node)
    return remedies
