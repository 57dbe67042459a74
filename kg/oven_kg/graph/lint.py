"""The lint for graphs of causes and remedies. It describes each fault in one sentence."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import networkx as nx

from oven_core.mesh.change_requirements import NEED_FORMS, NEED_PATTERN
from oven_core.protocol.actuators import ACTUATORS
from oven_kg.graph.graph_yaml import SECTIONS, Edge, Node, Records

ALLOWED_KINDS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
    "INDICATES": (("metric",), ("symptom",)),
    "CAUSES": (("cause",), ("symptom",)),
    "SOLVES": (("remedy",), ("cause",)),
    "PREVENTS": (("remedy",), ("cause",)),
    "WORSENS": (("remedy",), ("cause", "symptom")),
    "REQUIRES": (("remedy", "precondition"), ("precondition",)),
    "CONTRADICTS": (("remedy",), ("remedy",)),
}
"""The kinds of nodes at which each relation may begin and end."""
GRADES: Final = ("A", "B", "C", "D")
CHECK_LEVELS: Final = ("read", "quoted", "abstract")
PHASES: Final = ("pretrain", "sft", "grpo")


def lint(records: Records) -> list[str]:
    """Return all faults in rule order, or an empty list for a valid graph."""
    return [*records.unreadable, *(fault for rule in RULES for fault in rule(records))]


def _check_ids(records: Records) -> Iterator[str]:
    for noun, ids in (
        ("node", Counter(node.id for node in records.nodes)),
        ("edge", Counter(edge.id for edge in records.edges)),
    ):
        for id_, count in sorted(ids.items()):
            if not id_:
                yield f"{count} {noun}s have no id; give each its own"
            elif count > 1:
                yield f"the {noun} id {id_!r} occurs {count} times; ids must be unique"
    triples = Counter((edge.src, edge.relation, edge.dst) for edge in records.edges)
    for (src, relation, dst), count in sorted(triples.items()):
        if count > 1:
            yield f"{src} {relation} {dst} occurs {count} times; keep the better sourced edge"


def _check_ends(records: Records) -> Iterator[str]:
    kinds = {node.id: node.kind for node in records.nodes}
    for edge in records.edges:
        if edge.relation not in ALLOWED_KINDS:
            yield f"edge {edge.id} has the unknown relation {edge.relation!r}; use one of {', '.join(ALLOWED_KINDS)}"
            continue
        for end, allowed in zip((edge.src, edge.dst), ALLOWED_KINDS[edge.relation], strict=True):
            if end not in kinds:
                yield f"edge {edge.id} refers to the missing node {end!r}; add the node, or remove the edge"
            elif kinds[end] not in allowed:
                yield f"edge {edge.id}: {end} is a {kinds[end]}, where {edge.relation} needs a {' or '.join(allowed)}"


def _check_isolated(records: Records) -> Iterator[str]:
    linked_nodes = {end for edge in records.edges for end in (edge.src, edge.dst)}
    for node in records.nodes:
        if node.id not in linked_nodes:
            yield f"the {node.kind} {node.id!r} has no edge; link it or remove it"


def _check_evidence(records: Records) -> Iterator[str]:
    """Check that each edge has a strength, a grade and a source, and that the grade matches the source."""
    sources = {source.id: source for source in records.sources}
    for edge in records.edges:
        if not 0 < edge.strength <= 1:
            yield f"edge {edge.id} has strength {edge.strength:g}; it must be above 0 and at most 1"
        if edge.grade not in GRADES:
            yield f"edge {edge.id} has grade {edge.grade!r}; grades are {', '.join(GRADES)}"
        source = sources.get(edge.source)
        if source is None:
            yield f"edge {edge.id} cites {edge.source!r}, which is not in the bibliography"
        elif edge.grade in ("A", "B") and not (source.arxiv or source.doi):
            yield f"edge {edge.id} has grade {edge.grade}, but {source.id} is not a paper; use grade C or D"
        elif source.own != (edge.grade == "D"):
            yield f"edge {edge.id} has grade {edge.grade} and cites {source.id}; only D is for own measurements"
        elif edge.grade != "C" and not edge.at:
            yield f"edge {edge.id} has no position in {source.id}; add `at`"


def _check_bibliography(records: Records) -> Iterator[str]:
    for source in records.sources:
        if not source.title or not source.year:
            yield f"source {source.id!r} needs a title and a year"
        if source.checked not in CHECK_LEVELS:
            yield f"source {source.id!r} has `checked: {source.checked}`; use {', '.join(CHECK_LEVELS)}"
        if source.arxiv and not re.fullmatch(r"\d{4}\.\d{4,5}", source.arxiv):
            yield f"source {source.id!r} has the arXiv number {source.arxiv!r}; write it like 2204.02311"


def _check_nodes(records: Records) -> Iterator[str]:
    for node in records.nodes:
        if node.kind not in SECTIONS.values():
            yield f"the node {node.id!r} has the kind {node.kind!r}; kinds are {', '.join(SECTIONS.values())}"
        for phase in node.phase:
            if phase not in PHASES:
                yield f"{node.id} has the phase {phase!r}; phases are {', '.join(PHASES)}"
        if node.kind == "cause" and not 0 < node.prior < 0.5:
            yield f"the cause {node.id} has prior {node.prior:g}; it must be above 0 and below 0.5"
        if node.kind == "remedy":
            yield from _check_remedy(node)
        if node.kind == "precondition":
            yield from _check_precondition(node, records)


def _check_remedy(remedy: Node) -> Iterator[str]:
    if bool(remedy.changes) == remedy.advisory:
        yield f"the remedy {remedy.id} must either have `changes` or be `advisory: true`"
    for change in remedy.changes:
        name, _, direction = change.partition(":")
        if name not in ACTUATORS:
            yield f"the remedy {remedy.id} changes {name!r}, which no learner announces; known: {', '.join(ACTUATORS)}"
            continue
        is_scalar = ACTUATORS[name].kind == "scalar"
        if direction not in (("up", "down") if is_scalar else ("",)):
            yield f"the remedy {remedy.id} changes {change!r}; write {name}{' with :up or :down' if is_scalar else ''}"


def _check_precondition(need: Node, records: Records) -> Iterator[str]:
    if not NEED_PATTERN.fullmatch(need.id):
        yield f"the precondition {need.id!r} cannot be checked; write {NEED_FORMS}"
        return
    kind, _, name = need.id.partition(":")
    if kind == "actuator" and name not in ACTUATORS:
        yield f"the precondition {need.id!r} is not a known actuator; known: {', '.join(ACTUATORS)}"
    if kind == "metric" and name not in {node.id for node in records.nodes if node.kind == "metric"}:
        yield f"the precondition {need.id!r} is not a metric of the graph; add it under `metrics`"


def _check_cycles(records: Records) -> Iterator[str]:
    network = nx.DiGraph((edge.src, edge.dst) for edge in records.edges if edge.relation == "REQUIRES")
    if not nx.is_directed_acyclic_graph(network):
        cycle = " → ".join(src for src, _ in nx.find_cycle(network))
        yield f"REQUIRES edges form a cycle: {cycle}; remove one of them"


def _check_contradictions(records: Records) -> Iterator[str]:
    """Check that each contradiction is written once, because it applies in both directions."""
    pairs: set[frozenset[str]] = set()
    changes = {node.id: set(node.changes) for node in records.nodes}
    for edge in records.edges:
        if edge.relation != "CONTRADICTS":
            continue
        pair = frozenset((edge.src, edge.dst))
        if len(pair) == 1:
            yield f"edge {edge.id}: {edge.src} contradicts itself; remove the edge"
        elif pair in pairs:
            yield f"edge {edge.id} repeats that {edge.src} and {edge.dst} contradict; one edge covers both directions"
        elif shared_changes := changes.get(edge.src, set()) & changes.get(edge.dst, set()):
            yield f"edge {edge.id}: {edge.src} and {edge.dst} both make the change {', '.join(sorted(shared_changes))}"
        pairs.add(pair)


def _check_conflicts(records: Records) -> Iterator[str]:
    """Check that no remedy both solves, or prevents, and worsens the same cause."""
    helpful_edges: dict[tuple[str, str], Edge] = {
        (edge.src, edge.dst): edge for edge in records.edges if edge.relation in ("SOLVES", "PREVENTS")
    }
    for edge in records.edges:
        helpful_edge = helpful_edges.get((edge.src, edge.dst))
        if edge.relation == "WORSENS" and helpful_edge:
            yield f"{edge.src} both {helpful_edge.relation} and WORSENS {edge.dst} (edges {helpful_edge.id}, {edge.id})"


def _check_coverage(records: Records) -> Iterator[str]:
    """Check that each symptom has a cause and each cause a remedy. Otherwise a diagnosis would be empty."""
    caused_symptoms = {edge.dst for edge in records.edges if edge.relation == "CAUSES"}
    solvable_causes = {edge.dst for edge in records.edges if edge.relation in ("SOLVES", "PREVENTS")}
    for node in records.nodes:
        if node.kind == "symptom" and node.id not in caused_symptoms:
            yield f"the symptom {node.id!r} has no cause; add a CAUSES edge"
        if node.kind == "cause" and node.id not in solvable_causes:
            yield f"the cause {node.id!r} has no remedy; add a SOLVES or PREVENTS edge"


RULES: Final[tuple[Callable[[Records], Iterator[str]], ...]] = (
    _check_ids, _check_ends, _check_isolated, _check_evidence, _check_bibliography, _check_nodes, _check_cycles,
    _check_contradictions, _check_conflicts, _check_coverage,
)  # fmt: skip
