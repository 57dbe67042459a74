"""Estimates of each judge's reliability during the run. The judge's weight is multiplied by the estimate.

A judge that agrees with the others gets 1. An unrelated or opposed judge falls to FLOOR. The estimate comes from
agreement and from controls, which are tests with known answers. So the majority can mislead it: it cannot tell which of
two contradicting judges is correct, and judges that make the same errors seem reliable. The user's rules keep their
full weight. They only serve as witnesses, with which the judges' scores are compared.

The estimates use neither a clock nor random numbers. They are part of checkpoints (`state_dict`).
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from oven_learner.rewards.aggregation import sees_difference, standardise

MEMORY: Final = 0.98
"""Decay of a group's evidence with each later group. Half remains after 34 groups. So a judge that changes is detected
within a few steps, and a single unusual step has little effect."""
PRIOR_GROUPS: Final = 8.0
"""Weight of the prior in groups. With a lower weight, a few unusual groups at the start would decide."""
PRIOR: Final = 0.6
"""Prior correlation of a judge with the others. Honest judges of short answers had 0.5 to 0.8."""
FULL_WEIGHT_SHARE: Final = 0.5
"""Share of the best judge's agreement above which a judge keeps its full weight. A specialist on another aspect agrees
less, but should keep its weight."""
FLOOR: Final = 0.1
"""Minimum reliability. At 0 a judge would not count towards a quorum and could not recover."""
MIN_WITNESSES: Final = 3
"""Minimum number of members that see a difference. If only two do and they disagree, either may be wrong."""
FAILED_CONTROL: Final = -1.0
"""Agreement recorded for a judge that was fooled by a known-bad answer, or scored a known-good one as wrong."""


class Reliability:
    """Reliability estimates for the members in `judges`. Other members only serve as witnesses."""

    def __init__(self, judges: Collection[str]) -> None:
        self._sums = dict.fromkeys(judges, 0.0)
        self._groups = dict.fromkeys(judges, 0.0)

    def weights(self, weights: Mapping[str, float]) -> dict[str, float]:
        """Return the weights, with those of judges multiplied by reliability. A positive weight stays positive."""
        reliabilities = self.values()
        return {name: weight * reliabilities.get(name, 1.0) for name, weight in weights.items()}

    def values(self) -> dict[str, float]:
        """Return the reliability of each judge, from FLOOR to 1."""
        agreement = {
            name: (self._sums[name] + PRIOR_GROUPS * PRIOR) / (self._groups[name] + PRIOR_GROUPS) for name in self._sums
        }
        best = max(agreement.values(), default=0.0)
        if best <= 0:
            return dict.fromkeys(agreement, FLOOR if len(agreement) > 1 else 1.0)
        return {name: min(1.0, max(FLOOR, value / (FULL_WEIGHT_SHARE * best))) for name, value in agreement.items()}

    def add_group(self, scores: Mapping[str, Sequence[float]], weights: Mapping[str, float]) -> None:
        """Update the estimates with the voting members' scores of one group, unless fewer than MIN_WITNESSES see a
        difference."""
        standard_scores = {name: standardise(values) for name, values in scores.items() if sees_difference(values)}
        if len(standard_scores) < MIN_WITNESSES:
            return
        current_weights = self.weights({name: weights[name] for name in standard_scores})
        for name in standard_scores.keys() & self._sums.keys():
            others = [peer for peer in standard_scores if peer != name]
            consensus = [
                math.fsum(current_weights[peer] * standard_scores[peer][i] for peer in others)
                for i in range(len(standard_scores[name]))
            ]
            if sees_difference(consensus):
                pairs = zip(standard_scores[name], standardise(consensus), strict=True)
                self._record(name, math.fsum(x * y for x, y in pairs) / len(consensus))

    def record_failed_control(self, member: str) -> None:
        """Record that the judge was fooled by a known-bad answer, or scored a known-good one as wrong."""
        if member in self._sums:
            self._record(member, FAILED_CONTROL)

    def reset(self, member: str) -> None:
        """Reset the estimate for a new judge, or for one that another model has replaced."""
        self._sums[member] = self._groups[member] = 0.0

    def leave(self, member: str) -> None:
        """Remove a judge."""
        del self._sums[member], self._groups[member]

    def _record(self, name: str, agreement: float) -> None:
        self._sums[name] = MEMORY * self._sums[name] + agreement
        self._groups[name] = MEMORY * self._groups[name] + 1

    def state_dict(self) -> dict[str, Any]:
        """Return [sum of agreement, number of groups] for each judge, both with decay."""
        return {name: [self._sums[name], self._groups[name]] for name in self._sums}

    def load_state_dict(self, state: Mapping[str, Any], judges: Collection[str] | None = None) -> None:
        """Load the state of these judges, or of all. Judges that are missing in `state` start without evidence."""
        for name in self._sums.keys() if judges is None else self._sums.keys() & set(judges):
            self._sums[name], self._groups[name] = map(float, state.get(name, (0.0, 0.0)))
