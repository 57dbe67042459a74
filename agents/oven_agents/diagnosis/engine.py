"""Combines the evidence of a run's log into findings, most important first."""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Iterable, Mapping, Sequence
from dataclasses import replace
from itertools import chain
from types import MappingProxyType
from typing import Final

from oven_agents.diagnosis.changes import read_changes
from oven_agents.diagnosis.finding import (
    MIN_ACT_CONFIDENCE,
    MIN_ADVICE_CONFIDENCE,
    Evidence,
    Finding,
    Severity,
)
from oven_agents.diagnosis.interventions import read_interventions
from oven_agents.diagnosis.kinds import KINDS, cost_of, remedy_of
from oven_agents.diagnosis.levels import read_levels
from oven_agents.diagnosis.rules import read_curves
from oven_agents.diagnosis.rules.curve import MIN_READINGS
from oven_agents.diagnosis.run_record import RunRecord
from oven_agents.stats.objective import objective
from oven_core.mesh.actuator_values import show
from oven_core.protocol.events import Event
from oven_core.terminal_text import clean, counted

MAX_CONFIDENCE: Final = 0.99
"""Maximum confidence of a finding, because no amount of evidence makes a cause certain."""
MAX_MESSAGES: Final = 2
"""Maximum number of pieces of evidence in a message, strongest first."""
MAX_CHARACTERS: Final = 400
"""Maximum length of a piece of evidence in a message."""


def read_record(events: Iterable[Event], columns: Mapping[str, str] = MappingProxyType({})) -> RunRecord:
    """Return the record of a log's events. `columns` are those of another program's log (`RunRecord.columns`)."""
    record = RunRecord(columns=columns)
    for event in events:
        record.add(event)
    return record


def find_findings(record: RunRecord) -> list[Finding]:
    """Return what is wrong with the run, most important first: one finding per kind. The list is empty for a run in
    which nothing is wrong, or without observations."""
    if record.run is None or not record.ticks:
        return []
    by_kind: dict[str, list[Evidence]] = {}
    levels = chain(read_levels(record), read_curves(record))
    for source in (read_interventions(record), levels):
        for kind, evidence in _strongest(source).items():
            by_kind.setdefault(kind, []).append(evidence)
    for kind, evidence in _strongest(read_changes(record)).items():
        others = by_kind.setdefault(kind, [])
        others.append(replace(evidence, text="") if others else evidence)  # a rule says more than a change of a metric
    findings = [_combine(kind, evidence, record) for kind, evidence in by_kind.items()]
    treated = {kind for kind, evidence in by_kind.items() if any(item.corrected for item in evidence)}
    if "memorising" in by_kind:  # its text says what to measure
        findings = [finding for finding in findings if finding.kind != "never_evaluated"]
    findings = [_with_column(finding, record.columns) for finding in _merge_collapse(findings)]
    remaining = (_without_consequences(finding, findings, treated) for finding in findings)
    return sorted(filter(None, remaining), key=_importance)


def verdict(record: RunRecord, findings: Sequence[Finding]) -> str:
    """Return a sentence for a run without advice, or an empty string if a finding gives advice."""
    if any(finding.severity != "note" for finding in findings):
        return ""
    if text := unjudged(record):
        return text
    if objective(record.started).name not in record.series:
        return "no training loss or reward found, so only some checks ran"
    if findings:
        condition = " if this is one run" if any(finding.kind == "steps_out_of_order" for finding in findings) else ""
        return f"nothing needs action{condition}; {counted(len(findings), 'remark')}"
    return "nothing needs action, as far as the log shows"


def unjudged(record: RunRecord) -> str:
    """Return why the rules cannot judge the run, or an empty string if they can."""
    specs = [spec for spec in record.started.metrics if spec.better != "neither" or spec.name in ("loss", "reward")]
    counts = {spec.name: len(record.series[spec.name][1]) for spec in specs if spec.name in record.series}
    if not counts:
        return "the run cannot be judged: no column is a loss, a reward, or a quality"
    metric = max(counts, key=lambda name: counts[name])
    if counts[metric] >= MIN_READINGS:
        return ""
    return f"too short for most checks: {metric} has {counted(counts[metric], 'reading')}, and they need {MIN_READINGS}"


def _without_consequences(finding: Finding, findings: Sequence[Finding], treated: Collection[str]) -> Finding | None:
    """Return the finding, or a note if another finding explains it that is at least as certain, calls for action, or
    was treated by the controller, because the mesh then accepted it as the cause. `treated` has the kinds of those.
    Return None if the explained finding would be only a note by itself."""
    is_explained = any(
        cause.kind in KINDS
        and finding.kind in KINDS[cause.kind].explains
        and (
            cause.severity == "act"
            or (cause.kind in treated and cause.severity == "advise")
            or cause.confidence >= max(finding.confidence, MIN_ADVICE_CONFIDENCE)
        )
        for cause in findings
    )
    if not is_explained:
        return finding
    return None if finding.severity == "note" else finding.model_copy(update={"severity": "note"})


def _merge_collapse(findings: Sequence[Finding]) -> list[Finding]:
    """Return the findings. If a policy is dead after its reward collapsed, both are one finding."""
    by_kind = {finding.kind: finding for finding in findings}
    dead, collapse = by_kind.get("dead"), by_kind.get("reward_collapse")
    if dead is None or collapse is None or collapse.onset_tick > dead.onset_tick:
        return [*findings]
    message = f"{dead.message}. That followed a collapse: {collapse.message}"
    merged = dead.model_copy(update={"message": message, "remedy": collapse.remedy, "cost": collapse.cost})
    return [merged if finding is dead else finding for finding in findings if finding is not collapse]


def _with_column(finding: Finding, columns: Mapping[str, str]) -> Finding:
    """Return the finding with a message that also names the column of its metric, if that has another name."""
    metric, column = finding.metric, columns.get(finding.metric, finding.metric)
    if column.replace("_", "/") == metric.replace("_", "/"):
        return finding
    name = re.compile(rf"(?<![\w/]){re.escape(metric)}(?![\w/])")
    message = name.sub(lambda match: f"{match[0]} ({clean(column)})", finding.message, count=1)
    return finding.model_copy(update={"message": message})


def _strongest(evidence: Iterable[Evidence]) -> dict[str, Evidence]:
    """Return the strongest evidence of each kind with the earliest onset. Evidence from one source does not add up,
    because it comes from the same readings."""
    strongest: dict[str, Evidence] = {}
    for item in evidence:
        earlier = strongest.get(item.kind, item)
        best = item if item.weight > earlier.weight else earlier
        strongest[item.kind] = replace(best, tick=min(earlier.tick, item.tick))
    return strongest


def _combine(kind: str, evidence: Sequence[Evidence], record: RunRecord) -> Finding:
    """Combine the evidence for one kind, at most one per source, by noisy-OR."""
    doubt = math.prod(1 - item.weight for item in evidence)
    confidence = round(min(1 - doubt, MAX_CONFIDENCE), 3)
    strongest_first = sorted(evidence, key=lambda item: -item.weight)
    texts = [_clean(item.text) for item in strongest_first if item.text and item.weight >= MIN_ADVICE_CONFIDENCE]
    message = "; ".join(texts[:MAX_MESSAGES]) or _clean(next(item.text for item in strongest_first if item.text))
    onset = strongest_first[0].tick
    step, last_step = record.step_at(onset), record.steps[-1]
    remedy = next((item.remedy for item in strongest_first if item.remedy), remedy_of(kind, step, record.steps[0]))
    cost = next((item.cost for item in strongest_first if item.cost), cost_of(kind, step, last_step))
    knob = next((item.corrected for item in evidence if item.corrected), "")
    first, now = record.first_values.get(knob), record.values_now.get(knob)
    if first is not None and first != now:  # not an action, and not undone
        remedy = f"the controller changed {knob} {show(first)} → {show(now)}; start the next run with that value"
    return Finding(
        kind=kind,
        metric=next((item.metric for item in strongest_first if item.metric), objective(record.started).name),
        onset_step=step,
        onset_tick=onset,
        severity=_severity(confidence),
        confidence=confidence,
        message=message,
        remedy=remedy,
        cost=cost,
    )


def _clean(text: str) -> str:
    """Return an untrusted text, which may quote an agent, as one line of at most MAX_CHARACTERS."""
    text = clean(text)
    return text if len(text) <= MAX_CHARACTERS else f"{text[: MAX_CHARACTERS - 1]}…"


def _severity(confidence: float) -> Severity:
    if confidence >= MIN_ACT_CONFIDENCE:
        return "act"
    return "advise" if confidence >= MIN_ADVICE_CONFIDENCE else "note"


def _importance(finding: Finding) -> tuple[int, float, str]:
    """Return a sort key that puts the most important finding first."""
    return ("act", "advise", "note").index(finding.severity), -finding.confidence, finding.kind
