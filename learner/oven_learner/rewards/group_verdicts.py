"""What a committee's members said of one group, as it is shown to people."""

from __future__ import annotations

from oven_learner.completions.sample import MemberVerdict
from oven_learner.rewards.group import Evidence
from oven_learner.rewards.scores import Abstention


def group_verdicts(evidence: Evidence, place: int) -> list[MemberVerdict]:
    """One a member that was asked, in the committee's order. A rule that abstains on one completion abstains on the
    group, and what it said of the others is shown all the same."""
    group, verdicts = evidence.groups[place], evidence.verdicts[place]
    reasons = evidence.reasons[place] if evidence.reasons else {}
    ids = {one.id: one.text for one in evidence.requests[place].completions} if evidence.requests else {}
    texts = list(zip(group.completions, group.as_written, strict=True))
    found = []
    for name, verdict in verdicts.items():
        weight = evidence.weights.get(name)
        of_seen = {ids[key]: said for key, said in reasons.get(name, {}).items() if key in ids}
        why = {written: of_seen[seen] for seen, written in texts if seen in of_seen}
        if not isinstance(verdict, Abstention):
            found.append(MemberVerdict(name, weight, verdict, reasons=why))
            continue
        cells = group.cells.get(name, ())
        scores = [None if isinstance(cell, Abstention) else cell for cell in cells]
        known = scores if any(score is not None for score in scores) else None
        found.append(MemberVerdict(name, weight, known, verdict.kind))
    return found
