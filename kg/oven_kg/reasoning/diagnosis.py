"""Diagnose training problems: rank causes and remedies for a set of symptoms.

These are pure functions, and the order of the symptoms does not matter.

Causes follow QMR-DT (Shwe et al. 1991): a symptom arises by noisy-OR from its causes and a leak. Each cause is judged
separately, with the others at their priors. So a more severe symptom never lowers the probability of its causes. On the
other hand, one cause never explains another away, so `p` only serves to rank causes. Unreported symptoms count as
unknown, not as absent.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from types import MappingProxyType
from typing import Final, Literal, TypeAlias, cast

from oven_core.mesh.change_requirements import covers, is_met
from oven_core.protocol.graph_requests import (
    Cause,
    DiagnoseRequest,
    Diagnosis,
    EvidencePath,
    Judgement,
    JudgeRequest,
    Remedy,
    Symptom,
)
from oven_kg.graph.graph_yaml import Edge, Node
from oven_kg.graph.knowledge_graph import KnowledgeGraph

GRADES_WEAKEST_LAST: Final = "ABDC"
"""Grades of evidence: A controlled ablation, B reported at scale, D measured by us on one small task, C practice."""
LEAK: Final = 0.05
"""Probability of a symptom that no cause in the graph explains."""
MAX_LOG_ODDS: Final = 2.0
"""Maximum absolute log-odds of a remedy."""
PREVENTION_WEIGHT: Final = 0.5
"""Weight of preventing a cause relative to solving it, when its symptoms are present."""
SUPPORTING_RELATIONS: Final = (("SOLVES", 1.0), ("PREVENTS", PREVENTION_WEIGHT))
"""Relations that count in favour of a remedy, and their weights."""
NEUTRAL_LOG_ODDS: Final = 0.1
"""Log-odds below which the graph is neutral."""
MAX_PATHS: Final = 3
"""Maximum number of evidence paths per remedy."""

Severities: TypeAlias = Mapping[str, float]


def diagnose(
    graph: KnowledgeGraph, request: DiagnoseRequest, known_causes: Mapping[str, float] = MappingProxyType({})
) -> Diagnosis:
    """Rank the causes of the symptoms, and the remedies with a positive score. Remedies with unmet needs come last.
    `known_causes` with their probabilities replace the causes that the symptoms suggest."""
    symptoms = severities(graph, request.symptoms)
    causes = known_causes or cause_probabilities(graph, symptoms, request.phase)
    ranking = []
    for node in graph.nodes_of_kind("remedy"):
        if node.applies(request.phase) and (score := weigh(graph, node.id, causes, symptoms)) > 0:
            unmet = unmet_needs(_all_needs(graph, node), request.actuators, request.metrics, request.held_out)
            ranking.append((bool(unmet), -score, node.id, unmet))
    ranking.sort()
    remedies = [
        Remedy(
            id=id_,
            changes=graph.nodes[id_].changes,
            score=-negative_score,
            unmet=unmet,
            paths=strongest_paths(graph, id_, causes, symptoms, ("SOLVES", "PREVENTS")),
        )
        for _, negative_score, id_, unmet in ranking[: request.k]
    ]
    ids = sorted({symptom.id for symptom in request.symptoms})
    return Diagnosis(
        graph=graph.sha, causes=tuple(Cause(id=id_, p=p) for id_, p in causes.items()), remedies=tuple(remedies),
        unknown=tuple(id_ for id_ in ids if not _is_symptom(graph, id_)),
    )  # fmt: skip


def severities(graph: KnowledgeGraph, symptoms: Iterable[Symptom]) -> dict[str, float]:
    """Return the severity of each symptom in the graph. For a repeated symptom, it is the largest one."""
    by_id: dict[str, float] = {}
    for symptom in symptoms:
        if symptom.severity > 0 and _is_symptom(graph, symptom.id):
            by_id[symptom.id] = max(symptom.severity, by_id.get(symptom.id, 0.0))
    return dict(sorted(by_id.items()))


def _is_symptom(graph: KnowledgeGraph, id_: str) -> bool:
    return id_ in graph.nodes and graph.nodes[id_].kind == "symptom"


def cause_probabilities(graph: KnowledgeGraph, symptoms: Severities, phase: str = "") -> dict[str, float]:
    """Return the probability of each cause of the symptoms, most likely first. Each symptom's log-likelihood ratio is
    weighted by its severity."""
    log_ratios: dict[str, list[float]] = {}
    for symptom, severity in symptoms.items():
        edges = [edge for edge in graph.edges_into(symptom, "CAUSES") if graph.nodes[edge.src].applies(phase)]
        p_not_caused = {edge.src: 1 - edge.strength * graph.nodes[edge.src].prior for edge in edges}
        for edge in edges:
            p_no_other_cause = math.prod(p for cause, p in sorted(p_not_caused.items()) if cause != edge.src)
            p_without = 1 - (1 - LEAK) * p_no_other_cause
            p_with = 1 - (1 - p_without) * (1 - edge.strength)
            log_ratios.setdefault(edge.src, []).append(severity * math.log(p_with / p_without))
    probabilities = {}
    for cause, ratios in log_ratios.items():
        prior = graph.nodes[cause].prior
        odds = math.exp(math.log(prior / (1 - prior)) + math.fsum(ratios))
        probabilities[cause] = odds / (1 + odds)
    return dict(sorted(probabilities.items(), key=lambda item: (-item[1], item[0])))


def weigh(graph: KnowledgeGraph, remedy: str, causes: Mapping[str, float], symptoms: Severities) -> float:
    """Return the log-odds of a remedy, ln((1 − harm) / (1 − benefit)), within ±MAX_LOG_ODDS. Harm and benefit combine
    the evidence for the diagnosis by noisy-OR. The result is 0 without evidence."""
    benefits: list[float] = []
    for relation, factor in SUPPORTING_RELATIONS:
        benefits += [
            _evidence_weight(edge.strength * factor * p)
            for edge in graph.edges_out_of(remedy, relation)
            if (p := causes.get(edge.dst))  # causes outside the diagnosis do not count
        ]
    harms = [
        _evidence_weight(edge.strength * causes.get(edge.dst, symptoms.get(edge.dst, 0.0)))
        for edge in graph.edges_out_of(remedy, "WORSENS")
    ]
    return max(-MAX_LOG_ODDS, min(MAX_LOG_ODDS, math.fsum(benefits) - math.fsum(harms)))


def _evidence_weight(p: float) -> float:
    return -math.log(max(1 - p, 1e-9))


def strongest_paths(
    graph: KnowledgeGraph, remedy: str, causes: Mapping[str, float], symptoms: Severities, relations: Sequence[str]
) -> tuple[EvidencePath, ...]:
    """Return at most MAX_PATHS paths from the symptoms to the remedy by these relations, strongest first."""
    weighted_paths: list[tuple[float, tuple[Edge, ...]]] = []
    for edge in graph.edges_out_of(remedy, *relations):
        if edge.dst in symptoms:
            weighted_paths.append((edge.strength * symptoms[edge.dst], (edge,)))
        elif edge.dst in causes:
            symptom_edges = sorted(
                (cause_edge for cause_edge in graph.edges_out_of(edge.dst, "CAUSES") if cause_edge.dst in symptoms),
                key=lambda cause_edge: (cause_edge.strength * symptoms[cause_edge.dst], cause_edge.id),
            )
            weight = edge.strength * causes[edge.dst] * (PREVENTION_WEIGHT if edge.relation == "PREVENTS" else 1.0)
            weighted_paths.append((weight, (*symptom_edges[-1:], edge)))
    weighted_paths.sort(key=lambda weighted: (-weighted[0], [edge.id for edge in weighted[1]]))
    return tuple(evidence_path(graph, edges) for _, edges in weighted_paths[:MAX_PATHS])


def evidence_path(graph: KnowledgeGraph, edges: Sequence[Edge], remark: str = "") -> EvidencePath:
    """Return a path in words. `edges` are written against their direction: loss_spike ← CAUSES ← lr_too_high ← SOLVES ←
    lower_lr. Needs and contradictions are written along their direction."""
    key = (*(edge.id for edge in edges), remark)
    if key in graph.paths:
        return graph.paths[key]
    if edges[0].relation in ("REQUIRES", "CONTRADICTS"):
        text = edges[0].src + "".join(f" → {edge.relation} → {edge.dst}" for edge in edges)
    else:
        text = edges[0].dst + "".join(f" ← {edge.relation} ← {edge.src}" for edge in edges)
    remedy = graph.nodes[edges[-1].src]
    if len(remedy.changes) > 1:
        text += f" ({' with '.join(remedy.changes)})"
    graph.paths[key] = path = EvidencePath(
        edges=tuple(edge.id for edge in edges), text=f"{text} ({remark})" if remark else text,
        grade=_weakest_grade(edges), sources=tuple(dict.fromkeys(edge.source for edge in edges)),
    )  # fmt: skip
    return path


def _weakest_grade(edges: Sequence[Edge]) -> Literal["A", "B", "C", "D"]:
    grade = max((edge.grade for edge in edges), key=GRADES_WEAKEST_LAST.index)
    return cast('Literal["A", "B", "C", "D"]', grade)


def unmet_needs(
    needs: Mapping[str, tuple[Edge, ...]], actuators: Collection[str], metrics: Collection[str], held_out: bool
) -> tuple[str, ...]:
    """Return the needs that this run does not meet, or an empty tuple if nothing is known about the run."""
    if not (actuators or metrics):
        return ()
    return tuple(need for need in sorted(needs) if not is_met(need, actuators, metrics, held_out))


def _all_needs(graph: KnowledgeGraph, remedy: Node) -> Mapping[str, tuple[Edge, ...]]:
    """Return the remedy's needs in the graph, and the actuators of its changes."""
    return {**graph.needs(remedy.id), **{f"actuator:{change.partition(':')[0]}": () for change in remedy.changes}}


def judge(graph: KnowledgeGraph, request: JudgeRequest) -> Judgement:
    """Judge one proposed change. If several remedies include the change, the one with the highest log-odds decides.
    Remedies without evidence in the graph do not count. The verdict does not change an agent's vote weight. Separate
    rules in the mesh bar the same changes."""
    symptoms = severities(graph, request.symptoms)
    causes = cause_probabilities(graph, symptoms, request.phase)
    weights = [(weigh(graph, node.id, causes, symptoms), node.id) for node in _remedies_with_change(graph, request)]
    log_odds, best_remedy = max((weight for weight in weights if weight[0]), default=(0.0, ""))
    bars = barring_paths(graph, request)
    verdict: Literal["barred", "support", "object", "neutral"] = "neutral"
    if bars:
        verdict = "barred"
    elif abs(log_odds) >= NEUTRAL_LOG_ODDS:
        verdict = "support" if log_odds > 0 else "object"
    return Judgement(
        graph=graph.sha, verdict=verdict, log_odds=log_odds,
        supports=strongest_paths(graph, best_remedy, causes, symptoms, ("SOLVES", "PREVENTS")) if best_remedy else (),
        objections=bars + (strongest_paths(graph, best_remedy, causes, symptoms, ("WORSENS",)) if best_remedy else ()),
    )  # fmt: skip


def barring_paths(graph: KnowledgeGraph, request: JudgeRequest) -> tuple[EvidencePath, ...]:
    """Return the paths that bar the change now: first its unmet needs, then contradictions with changes in flight."""
    paths = []
    for change, needs in graph.requirements.items():
        if covers(change, request.changes):
            unmet = unmet_needs(needs, request.actuators, request.metrics, request.held_out)
            paths += [evidence_path(graph, needs[need], "unmet") for need in unmet]
    for pair, edge in graph.contradictions.items():
        for barred_change, opposite_change in (pair, pair[::-1]):
            if covers(barred_change, request.changes):
                conflicts = [change for change in sorted(request.in_flight) if covers(opposite_change, change)]
                paths += [evidence_path(graph, (edge,), f"{change} is in flight") for change in conflicts]
    return tuple(dict.fromkeys(paths))


def _remedies_with_change(graph: KnowledgeGraph, request: JudgeRequest) -> list[Node]:
    """Return the remedies that include this change and whose other changes the run has actuators for."""
    remedies = []
    for node in graph.nodes_of_kind("remedy"):
        if node.applies(request.phase) and any(covers(change, request.changes) for change in node.changes):
            actuators = {change.partition(":")[0] for change in node.changes if not covers(change, request.changes)}
            if not request.actuators or actuators.issubset(request.actuators):
                remedies.append(node)
    return remedies
