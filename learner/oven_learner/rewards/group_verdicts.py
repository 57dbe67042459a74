"""The members' verdicts on one group, for display."""

from __future__ import annotations

from oven_learner.completions.sample import MemberVerdict
from oven_learner.rewards.group import Evidence
from oven_learner.rewards.scores import Abstention


def group_verdicts(evidence: Evidence, index: int) -> list[MemberVerdict]:
    """Return one verdict per member that was asked, in the committee's order.

    A rule that abstains on one completion abstains on the group; its other scores are still shown.
    """
    group, verdicts = evidence.groups[index], evidence.verdicts[index]
    reasons = evidence.reasons[index] if evidence.reasons else {}
    ids = (
        {completion.id: completion.text for completion in evidence.requests[index].completions}
        if evidence.requests
        else {}
    )
    texts = list(zip(group.completions, group.as_written, strict=True))
    shown = []
    for name, verdict in verdicts.items():
        weight = evidence.weights.get(name)
        of_seen = {ids[key]: reason for key, reason in reasons.get(name, {}).items() if key in ids}
        reasons_by_text = {written: of_seen[seen] for seen, written in texts if seen in of_seen}
        if not isinstance(verdict, Abstention):
            shown.append(MemberVerdict(name, weight, verdict, reasons=reasons_by_text))
            continue
        cells = group.cells.get(name, ())
        scores = [None if isinstance(cell, Abstention) else cell for cell in cells]
        shown_scores = scores if any(score is not None for score in scores) else None
        shown.append(MemberVerdict(name, weight, shown_scores, verdict.kind))
    return shown
