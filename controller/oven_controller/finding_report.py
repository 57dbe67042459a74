"""The findings of a diagnosis: as lines for people, and with the knowledge graph's remedies for their causes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import TYPE_CHECKING

from oven_agents.diagnosis.engine import verdict
from oven_agents.diagnosis.finding import Finding
from oven_agents.diagnosis.kinds import KINDS, title_of
from oven_agents.diagnosis.run_record import RunRecord
from oven_agents.sdk.alternative_plans import diagnose_request
from oven_core.protocol.graph_requests import Diagnosis
from oven_core.terminal_text import counted

if TYPE_CHECKING:
    from oven_kg.graph.knowledge_graph import KnowledgeGraph

TRANSIENT = ("nan", "spike_recovered")
"""Kinds whose notes say at which step they occurred first, because they may be over."""
MAX_NOTES = 5
"""Maximum number of notes to print. --json prints all of them."""


def finding_lines(findings: Sequence[Finding], record: RunRecord) -> Iterator[str]:
    """Yield the lines for a run's findings, most important first."""
    restarts = [finding for finding in findings if finding.kind == "steps_out_of_order"]
    if text := verdict(record, findings):
        yield f"{text[0].upper()}{text[1:]}{':' if findings else ''}"
    for finding in restarts:  # first, because it may make the others unreliable
        yield from describe(finding, record)
    findings = [finding for finding in findings if finding not in restarts]
    notes = [finding for finding in findings if finding.severity == "note"]
    for finding in [*findings[: len(findings) - len(notes)], *notes[:MAX_NOTES]]:
        yield from describe(finding, record)
    if len(notes) > MAX_NOTES:
        yield f"and {counted(len(notes) - MAX_NOTES, 'more note')} (--json)"


def describe(finding: Finding, record: RunRecord) -> Iterator[str]:
    """Yield the lines for one finding. If it was there from the start, its onset is not printed."""
    from_start = finding.onset_step == record.steps[0] or finding.kind == "steps_out_of_order"
    may_be_over = finding.severity == "note" and finding.kind in TRANSIENT
    since = "" if from_start else f"{', first at' if may_be_over else ' since'} step {finding.onset_step:,}"
    confidence = "" if finding.severity == "note" else f" (confidence {finding.confidence:.2f})"
    yield f"{finding.severity}: {title_of(finding.kind)}{since}{confidence}: {finding.message}"
    yield f"  remedy: {finding.remedy}"
    if finding.severity == "act" and finding.cost:
        yield f"  if this finding is wrong, following it costs {finding.cost}"


def explain_findings(
    findings: Sequence[Finding], record: RunRecord, max_remedies: int, graph: KnowledgeGraph | None = None
) -> Diagnosis | None:
    """Return the findings' causes, in the same order, and the graph's remedies for them, or None if the graph knows no
    finding. If none of the findings is a cause, the graph ranks the causes of the findings' symptoms instead. Notes do
    not count, because nothing should be done about them. `graph` defaults to the built-in one."""
    from oven_kg.checked_graph import load
    from oven_kg.reasoning.diagnosis import diagnose

    graph = graph or load()
    findings = [finding for finding in findings if finding.severity != "note"]
    symptoms = {node.id for node in graph.nodes_of_kind("symptom")}
    causes = {node.id for node in graph.nodes_of_kind("cause")}
    known_causes = {finding.kind: finding.confidence for finding in findings if finding.kind in causes}
    severities: dict[str, float] = {}
    for finding in findings:
        symptom = KINDS[finding.kind].symptom if finding.kind in KINDS else finding.kind
        if symptom in symptoms:
            severities[symptom] = max(finding.confidence, severities.get(symptom, 0.0))
    if not severities:
        return None
    return diagnose(graph, diagnose_request(severities, record.started, max_remedies), known_causes)
