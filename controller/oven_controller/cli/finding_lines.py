"""The findings of a diagnosis as lines for people."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from oven_agents.diagnosis.finding import Finding

MAX_NOTES = 5
"""Maximum number of notes to print. --json prints all of them."""


def finding_lines(findings: Sequence[Finding]) -> Iterator[str]:
    """Yield the lines for the findings, most important first."""
    notes = [finding for finding in findings if finding.severity == "note"]
    causes = [finding for finding in findings if finding.severity != "note"]
    if not causes:
        yield "nothing is wrong, as far as the log shows"
    for finding in [*causes, *notes[:MAX_NOTES]]:
        since = "" if finding.onset_step is None else f" since step {finding.onset_step}"
        yield f"{finding.severity}: {finding.kind}{since} (confidence {finding.confidence:.2f}): {finding.message}"
        if finding.severity != "note":
            yield f"  remedy: {finding.remedy}"
    if len(notes) > MAX_NOTES:
        yield f"and {len(notes) - MAX_NOTES} more notes (--json)"
