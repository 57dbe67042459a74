"""Renders the findings on runs as one HTML file, with the curves on which they rest."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from html import escape

from oven_agents.diagnosis.engine import verdict
from oven_agents.diagnosis.finding import Finding
from oven_agents.diagnosis.kinds import title_of
from oven_agents.diagnosis.run_record import RunRecord
from oven_agents.review.chart import Mark, render_chart
from oven_agents.review.flagged_proposals import Series
from oven_agents.review.page import render_page
from oven_agents.stats.objective import held_out_metric, objective

MAX_CHARTS = 6
"""Maximum number of charts per run."""
CSS_CLASSES = {"act": "harm", "advise": "alarm", "note": "unknown"}


@dataclass(frozen=True, slots=True)
class ReviewedRun:
    """A run with its findings, and notes on how its log was read."""

    name: str
    record: RunRecord
    findings: Sequence[Finding]
    notes: Sequence[str]


def render(runs: Sequence[ReviewedRun]) -> str:
    """Return the page of one run or several."""
    title = f"Review of {escape(runs[0].name)}" if len(runs) == 1 else f"Review of {len(runs)} runs"
    return render_page(title, title, "".join(map(_render_run, runs)))


def _render_run(run: ReviewedRun) -> str:
    notes = "".join(f'<p class="soft">{escape(note)}</p>\n' for note in run.notes)
    rows = "\n".join(_render_finding(number, finding) for number, finding in enumerate(run.findings, 1))
    table = f"<table>{rows}</table>" if rows else ""
    text = verdict(run.record, run.findings)
    summary = f"<p>{escape(text[0].upper() + text[1:])}.</p>\n" if text else ""
    charts = "\n".join(_render_charts(run))
    return f"<h2>{escape(run.name)}</h2>\n{notes}{summary}{table}\n{charts}\n"


def _render_finding(number: int, finding: Finding) -> str:
    css_class = CSS_CLASSES[finding.severity]
    return (
        f'<tr><td class="number">{number}</td><td><b class="{css_class}">{finding.severity}</b></td>'
        f"<td><b>{escape(title_of(finding.kind))}</b> "
        f'<span class="soft">since step {finding.onset_step:,}, confidence {finding.confidence:.2f}</span><br/>'
        f"{escape(finding.message)}<br/><b>Remedy:</b> {escape(finding.remedy)}</td></tr>"
    )


def _render_charts(run: ReviewedRun) -> list[str]:
    record = run.record
    held_out = held_out_metric(record.started)
    names = [objective(record.started).name, *([held_out.name] if held_out else []), "learning_rate", "grad_norm"]
    names += [finding.metric for finding in run.findings]
    marks = [
        Mark(str(number), finding.onset_tick, CSS_CLASSES[finding.severity], finding.message)
        for number, finding in enumerate(run.findings, 1)
    ]
    charted = [name for name in dict.fromkeys(names) if name in record.series][:MAX_CHARTS]
    first, last = record.ticks[0], record.ticks[-1]
    ends = f"step {record.steps[0]:,}", f"{record.steps[-1]:,}"
    return [render_chart(name, Series(*record.series[name]), marks, first, last, ends) for name in charted]
