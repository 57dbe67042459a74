"""Estimate each judge's reliability during the run. Its weight is multiplied by the estimate.

A judge that agrees with the others gets 1. An unrelated or opposed judge falls to FLOOR. The estimate comes from
agreement and from controls, so it has the limits of a majority. If two judges contradict each other, it cannot tell
which is right, and judges with the same errors seem reliable. The user's rules are not estimates, so they only serve as
witnesses and keep their whole weight.

Pure state without clock or randomness. It belongs to the training (`state_dict`) and is part of checkpoints.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from oven_learner.rewards.aggregation import sees_difference, standardised

MEMORY: Final = 0.98
"""Decay of a group's evidence per further group. Half remains after 34 groups, so that a judge that changes is detected
within a few steps, and a single odd step has little effect."""
PRIOR_GROUPS: Final = 8.0
"""Weight of the prior in groups. With a lower weight, the first odd groups would decide."""
PRIOR: Final = 0.6
"""Prior correlation of a judge. Honest judges of short answers had 0.5 to 0.8."""
FULL: Final = 0.5
"""Share of the best judge's agreement from which a judge counts fully. A specialist on another aspect agrees less, and
should keep its weight."""
FLOOR: Final = 0.1
"""Minimum reliability. At 0 a judge would not count towards a quorum and could not recover."""
WITNESSES: Final = 3
"""Minimum number of members that see a difference. If only two disagree, either may be wrong."""
FAILED_CONTROL: Final = -1.0
"""Agreement recorded for a judge that obeyed a known-bad answer, or called a known-good one wrong."""


class Reliability:
    """Reliability estimates for the members in `judged`. Other members only serve as witnesses."""

    def __init__(self, judged: Collection[str]) -> None:
        self._sums = dict.fromkeys(judged, 0.0)
        self._groups = dict.fromkeys(judged, 0.0)

    def weights(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Return `weights`. Those of judges are multiplied by reliability. A positive weight stays positive."""
        reliabilities = self.values()
        return {name: weight * reliabilities.get(name, 1.0) for name, weight in weights.items()}

    def values(self) -> dict[str, float]:
        """Return each judge's reliability, from FLOOR to 1."""
        agreed = {
            name: (self._sums[name] + PRIOR_GROUPS * PRIOR) / (self._groups[name] + PRIOR_GROUPS) for name in self._sums
        }
        best = max(agreed.values(), default=0.0)
        if best <= 0:
            return dict.fromkeys(agreed, FLOOR if len(agreed) > 1 else 1.0)
        return {name: min(1.0, max(FLOOR, value / (FULL * best))) for name, value in agreed.items()}

    def add_group(self, scores: Mapping[str, Sequence[float]], weights: Mapping[str, float]) -> None:
        """Learn from the voting members' scores of one group, if at least WITNESSES members see a difference."""
        seeing = {name: standardised(values) for name, values in scores.items() if sees_difference(values)}
        if len(seeing) < WITNESSES:
            return
        counted = self.weights({name: weights[name] for name in seeing})
        for name in seeing.keys() & self._sums.keys():
            others = [peer for peer in seeing if peer != name]
            consensus = [
                math.fsum(counted[peer] * seeing[peer][i] for peer in others) for i, _ in enumerate(seeing[name])
            ]
            if sees_difference(consensus):
                pairs = zip(seeing[name], standardised(consensus), strict=True)
                self._enter(name, math.fsum(x * y for x, y in pairs) / len(consensus))

    def failed_control(self, member: str) -> None:
        """Record that the judge was fooled by a known-bad answer, or scored a known-good one as wrong."""
        if member in self._sums:
            self._enter(member, FAILED_CONTROL)

    def begin(self, member: str) -> None:
        """Start afresh for a new judge, or for a name that another judge takes over."""
        self._sums[member] = self._groups[member] = 0.0

    def leave(self, member: str) -> None:
        """Remove a judge."""
        del self._sums[member], self._groups[member]

    def _enter(self, name: str, agreed: float) -> None:
        self._sums[name] = MEMORY * self._sums[name] + agreed
        self._groups[name] = MEMORY * self._groups[name] + 1

    def state_dict(self) -> dict[str, Any]:
        """Return [sum of agreement, groups] for each judge, both with decay."""
        return {name: [self._sums[name], self._groups[name]] for name in self._sums}

    def load_state_dict(self, state: Mapping[str, Any], judges: Collection[str] | None = None) -> None:
        """Load the state of these judges, or of all. Judges missing in `state` start afresh."""
        for name in self._sums.keys() if judges is None else self._sums.keys() & set(judges):
            self._sums[name], self._groups[name] = map(float, state.get(name, (0.0, 0.0)))
