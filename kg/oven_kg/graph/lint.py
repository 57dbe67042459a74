"""The lint for graphs of causes and remedies. It reports each fault as a sentence that says how to fix it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Final

import networkx as nx

from oven_core.mesh.change_requirements import NEED_FORMS, NEED_PATTERN
from oven_core.protocol.actuator_names import ACTUATORS
from oven_kg.graph.graph_yaml import SECTIONS, Edge, Node, Records

ENDS: Final[dict[str, tuple[tuple[str, ...], tuple[str, ...]]]] = {
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
CHECKED: Final = ("read", "quoted", "abstract")
PHASES: Final = ("pretrain", "sft", "grpo")


def lint(records: Records) -> list[str]:
    """Return all faults in the order of the rules; empty for a valid graph."""
    return [*records.unreadable, *(fault for rule in RULES for fault in rule(records))]


def _ids(records: Records) -> Iterator[str]:
    for what, ids in (
        ("node", Counter(node.id for node in records.nodes)),
        ("edge", Counter(edge.id for edge in records.edges)),
    ):
        for id_, count in sorted(ids.items()):
            if not id_:
                yield f"{count} {what}s have no id; give each its own"
            elif count > 1:
                yield f"the {what} id {id_!r} occurs {count} times; ids are unique"
    triples = Counter((edge.src, edge.relation, edge.dst) for edge in records.edges)
    for (src, relation, dst), count in sorted(triples.items()):
        if count > 1:
            yield f"{src} {relation} {dst} occurs {count} times; keep the better sourced edge"


def _ends(records: Records) -> Iterator[str]:
    kinds = {node.id: node.kind for node in records.nodes}
    for edge in records.edges:
        if edge.relation not in ENDS:
            yield f"edge {edge.id}: there is no relation {edge.relation!r}; there are {', '.join(ENDS)}"
            continue
        for end, allowed in zip((edge.src, edge.dst), ENDS[edge.relation], strict=True):
            if end not in kinds:
                yield f"edge {edge.id} dangles: there is no node {end!r}"
            elif kinds[end] not in allowed:
                yield f"edge {edge.id}: {end} is a {kinds[end]}, where {edge.relation} needs a {' or '.join(allowed)}"


def _isolated(records: Records) -> Iterator[str]:
    linked = {end for edge in records.edges for end in (edge.src, edge.dst)}
    for node in records.nodes:
        if node.id not in linked:
            yield f"the {node.kind} {node.id!r} has no edge; link it or remove it"


def _evidence(records: Records) -> Iterator[str]:
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
            yield f"edge {edge.id} has grade {edge.grade}, but {source.id} is not a paper; only C and D may cite others"
        elif source.own != (edge.grade == "D"):
            yield f"edge {edge.id} has grade {edge.grade} and cites {source.id}; D means measured here"
        elif edge.grade != "C" and not edge.at:
            yield f"edge {edge.id} does not say where in {source.id}; give `at`"


def _bibliography(records: Records) -> Iterator[str]:
    for source in records.sources:
        if not source.title or not source.year:
            yield f"source {source.id!r} needs a title and a year"
        if source.checked not in CHECKED:
            yield f"source {source.id!r} was checked {source.checked!r}; say {', '.join(CHECKED)}, or cite practice"
        if source.arxiv and not re.fullmatch(r"\d{4}\.\d{4,5}", source.arxiv):
            yield f"source {source.id!r} has the arXiv number {source.arxiv!r}; write it like 2204.02311"


def _nodes(records: Records) -> Iterator[str]:
    for node in records.nodes:
        if node.kind not in SECTIONS.values():
            yield f"the node {node.id!r} is of the kind {node.kind!r}; kinds are {', '.join(SECTIONS.values())}"
        for phase in node.phase:
            if phase not in PHASES:
                yield f"{node.id} has the phase {phase!r}; phases are {', '.join(PHASES)}"
        if node.kind == "cause" and not 0 < node.prior < 0.5:
            yield f"the cause {node.id} has prior {node.prior:g}; it must be above 0 and below 0.5"
        if node.kind == "remedy":
            yield from _remedy(node)
        if node.kind == "precondition":
            yield from _precondition(node, records)


def _remedy(remedy: Node) -> Iterator[str]:
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


def _precondition(need: Node, records: Records) -> Iterator[str]:
    if not NEED_PATTERN.fullmatch(need.id):
        yield f"nothing can check the precondition {need.id!r}; write {NEED_FORMS}"
        return
    kind, _, name = need.id.partition(":")
    if kind == "actuator" and name not in ACTUATORS:
        yield f"the precondition {need.id!r} names no known actuator"
    if kind == "metric" and name not in {node.id for node in records.nodes if node.kind == "metric"}:
        yield f"the precondition {need.id!r} names no metric of the graph"


def _requires(records: Records) -> Iterator[str]:
    network = nx.DiGraph((edge.src, edge.dst) for edge in records.edges if edge.relation == "REQUIRES")
    if not nx.is_directed_acyclic_graph(network):
        cycle = " → ".join(src for src, _ in nx.find_cycle(network))
        yield f"REQUIRES runs in a circle: {cycle}; remove one of its edges"


def _contradicts(records: Records) -> Iterator[str]:
    """Check that each contradiction is written once, because it applies in both directions."""
    pairs: set[frozenset[str]] = set()
    changes = {node.id: set(node.changes) for node in records.nodes}
    for edge in records.edges:
        if edge.relation != "CONTRADICTS":
            continue
        pair = frozenset((edge.src, edge.dst))
        if len(pair) == 1:
            yield f"edge {edge.id}: {edge.src} contradicts itself"
        elif pair in pairs:
            yield f"edge {edge.id} repeats that {edge.src} and {edge.dst} contradict; one edge holds both ways"
        elif shared := changes.get(edge.src, set()) & changes.get(edge.dst, set()):
            yield f"edge {edge.id}: {edge.src} and {edge.dst} both make {', '.join(sorted(shared))}"
        pairs.add(pair)


def _opposed(records: Records) -> Iterator[str]:
    helps: dict[tuple[str, str], Edge] = {
        (edge.src, edge.dst): edge for edge in records.edges if edge.relation in ("SOLVES", "PREVENTS")
    }
    for edge in records.edges:
        helpful = helps.get((edge.src, edge.dst))
        if edge.relation == "WORSENS" and helpful:
            yield f"edges {helpful.id} and {edge.id} say that {edge.src} both {helpful.relation} and WORSENS {edge.dst}"


def _explained(records: Records) -> Iterator[str]:
    """Check that each symptom has a cause and each cause a remedy. Otherwise a diagnosis would be empty."""
    caused = {edge.dst for edge in records.edges if edge.relation == "CAUSES"}
    solved = {edge.dst for edge in records.edges if edge.relation in ("SOLVES", "PREVENTS")}
    for node in records.nodes:
        if node.kind == "symptom" and node.id not in caused:
            yield f"nothing causes the symptom {node.id!r}"
        if node.kind == "cause" and node.id not in solved:
            yield f"nothing solves or prevents the cause {node.id!r}"


RULES: Final[tuple[Callable[[Records], Iterator[str]], ...]] = (
    _ids,
    _ends,
    _isolated,
    _evidence,
    _bibliography,
    _nodes,
    _requires,
    _contradicts,
    _opposed,
    _explained,
)
