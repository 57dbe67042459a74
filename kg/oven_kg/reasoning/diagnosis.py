"""Diagnosis: from symptoms to ranked causes and remedies.

Pure: the answer does not depend on the order of the symptoms.

Causes follow QMR-DT (Shwe et al. 1991): a symptom arises by noisy-OR from its causes and a leak. Each cause is judged
by itself, with the others at their priors, so that a more severe symptom never lowers the probability of its causes.
That gives up explaining away, and makes `p` a rank. Symptoms that were not reported count as unknown, not as absent.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Final, Literal, cast

from oven_core.mesh.change_requirements import met
from oven_core.protocol.graph_requests import Cause, DiagnoseRequest, Diagnosis, EvidencePath, Remedy, Symptom
from oven_kg.graph.graph_yaml import Edge, Node
from oven_kg.graph.knowledge import Knowledge

WEAKEST_LAST: Final = "ABDC"
"""A controlled ablation, reported at scale, measured here on one small task, practice."""


def path(graph: Knowledge, edges: Sequence[Edge], remark: str = "") -> EvidencePath:
    """`edges` lead on from one node to the next, read against their direction: loss_spike ← CAUSES ← lr_too_high ←
    SOLVES ← lower_lr. Needs and a contradiction are read along it.
    """
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
    graph.paths[key] = found = EvidencePath(
        edges=tuple(edge.id for edge in edges),
        text=f"{text} ({remark})" if remark else text,
        grade=weakest(edges),
        sources=tuple(dict.fromkeys(edge.source for edge in edges)),
    )
    return found


def weakest(edges: Sequence[Edge]) -> Literal["A", "B", "C", "D"]:
    grade = max((edge.grade for edge in edges), key=WEAKEST_LAST.index)
    return cast('Literal["A", "B", "C", "D"]', grade)


LEAK: Final = 0.05
"""Probability that a symptom shows without any cause that the graph knows."""
LIMIT: Final = 2.0
"""Log-odds beyond which no evidence of this kind goes."""
PREVENTION: Final = 0.5
"""What preventing a cause is worth against solving it, once its symptoms are there."""
GOOD: Final = (("SOLVES", 1.0), ("PREVENTS", PREVENTION))
"""Relations that speak for a remedy, and what their edges count."""
PATHS: Final = 3

Severities = Mapping[str, float]


def diagnose(graph: Knowledge, request: DiagnoseRequest) -> Diagnosis:
    seen = severities(graph, request.symptoms)
    causes = posterior(graph, seen, request.phase)
    ranked = []
    for node in graph.of_kind("remedy"):
        if node.applies(request.phase) and (score := weigh(graph, node.id, causes, seen)) > 0:
            missing = unmet(_needs(graph, node), request.actuators, request.metrics, request.held_out)
            ranked.append((bool(missing), -score, node, missing))
    ranked.sort(key=lambda found: (found[0], found[1], found[2].id))
    remedies = [
        Remedy(
            id=node.id,
            changes=node.changes,
            score=-negative,
            unmet=missing,
            paths=arguments(graph, node.id, causes, seen, ("SOLVES", "PREVENTS")),
        )
        for _, negative, node, missing in ranked[: request.k]
    ]
    ids = sorted({symptom.id for symptom in request.symptoms})
    return Diagnosis(
        graph=graph.sha,
        causes=tuple(Cause(id=id_, p=p) for id_, p in causes.items()),
        remedies=tuple(remedies),
        unknown=tuple(id_ for id_ in ids if id_ not in graph.nodes or graph.nodes[id_].kind != "symptom"),
    )


def severities(graph: Knowledge, symptoms: Iterable[Symptom]) -> dict[str, float]:
    """Symptom → severity, of those that the graph knows; of one that is named twice the greater."""
    found: dict[str, float] = {}
    for symptom in symptoms:
        node = graph.nodes.get(symptom.id)
        if node is not None and node.kind == "symptom" and symptom.severity > 0:
            found[symptom.id] = max(symptom.severity, found.get(symptom.id, 0.0))
    return dict(sorted(found.items()))


def posterior(graph: Knowledge, seen: Severities, phase: str = "") -> dict[str, float]:
    """Cause → p, most likely first, of the causes of what was seen. A symptom's log-likelihood ratio counts by its
    severity."""
    ratios: dict[str, list[float]] = {}
    for symptom, severity in seen.items():
        edges = [edge for edge in graph.into(symptom, "CAUSES") if graph.nodes[edge.src].applies(phase)]
        absent = {edge.src: 1 - edge.strength * graph.nodes[edge.src].prior for edge in edges}
        for edge in edges:
            others = math.prod(value for cause, value in sorted(absent.items()) if cause != edge.src)
            without = 1 - (1 - LEAK) * others
            given = 1 - (1 - without) * (1 - edge.strength)
            ratios.setdefault(edge.src, []).append(severity * math.log(given / without))
    found = {}
    for cause, logs in ratios.items():
        prior = graph.nodes[cause].prior
        odds = math.exp(math.log(prior / (1 - prior)) + math.fsum(logs))
        found[cause] = odds / (1 + odds)
    return dict(sorted(found.items(), key=lambda item: (-item[1], item[0])))


def weigh(graph: Knowledge, remedy: str, causes: Mapping[str, float], seen: Severities) -> float:
    """ln((1 − harm) / (1 − benefit)) within ±LIMIT, both noisy-ORs over what was diagnosed: a sum of weights of
    evidence, 0 where the graph has nothing to say."""
    good: list[float] = []
    for relation, share in GOOD:
        good += [
            _weight(edge.strength * share * p)
            for edge in graph.edges_out(remedy, relation)
            if (p := causes.get(edge.dst))  # of what was not diagnosed nothing is gained
        ]
    bad = [
        _weight(edge.strength * causes.get(edge.dst, seen.get(edge.dst, 0.0)))
        for edge in graph.edges_out(remedy, "WORSENS")
    ]
    return max(-LIMIT, min(LIMIT, math.fsum(good) - math.fsum(bad)))


def _weight(p: float) -> float:
    left = 1 - p
    return -math.log(left if left > 1e-9 else 1e-9)


def arguments(
    graph: Knowledge, remedy: str, causes: Mapping[str, float], seen: Severities, relations: Sequence[str]
) -> tuple[EvidencePath, ...]:
    """The ways from what was seen to the remedy by these relations, the weightiest first, at most PATHS."""
    found: list[tuple[float, tuple[Edge, ...]]] = []
    for edge in graph.out_of(remedy, *relations):
        if edge.dst in seen:
            found.append((edge.strength * seen[edge.dst], (edge,)))
        elif edge.dst in causes:
            shown = max(
                (cause for cause in graph.out_of(edge.dst, "CAUSES") if cause.dst in seen),
                key=lambda cause: (cause.strength * seen[cause.dst], cause.id),
            )
            weight = edge.strength * causes[edge.dst] * (PREVENTION if edge.relation == "PREVENTS" else 1.0)
            found.append((weight, (shown, edge)))
    found.sort(key=lambda item: (-item[0], [edge.id for edge in item[1]]))
    return tuple(path(graph, edges) for _, edges in found[:PATHS])


def unmet(
    needs: Mapping[str, tuple[Edge, ...]], actuators: Collection[str], metrics: Collection[str], held_out: bool
) -> tuple[str, ...]:
    """The needs that this run does not meet; none where nothing was said of the run."""
    if not (actuators or metrics):
        return ()
    return tuple(need for need in sorted(needs) if not met(need, actuators, metrics, held_out))


def _needs(graph: Knowledge, remedy: Node) -> Mapping[str, tuple[Edge, ...]]:
    """The graph's, and the actuators that it changes."""
    return {**graph.needs(remedy.id), **{f"actuator:{change.partition(':')[0]}": () for change in remedy.changes}}
