"""How far each judge is to be believed, learnt while the run goes: its weight is multiplied by it.

A judge that agrees with the others gets 1. One that says nothing about what they see, or the opposite, falls to FLOOR.
It is an estimate from agreement and from controls, so it has the limits of a majority: of two judges that contradict
each other neither is known to be right, and judges that err together look reliable. Rules are what the user defined and
not estimates: they are witnesses here, and keep their whole weight.

Pure state: no clock, no randomness. It belongs to the training (`state_dict`), and comes back with a checkpoint.
"""

from __future__ import annotations

import math
from collections.abc import Collection, Mapping, Sequence
from typing import Any, Final

from oven_learner.rewards.aggregation.group_reward import sees_difference, standardised

MEMORY: Final = 0.98
"""What a group's evidence is worth after one more group: half after 34, so that a judge that turns is found out within
a few steps, and one odd step does not undo a judge."""
PRIOR_GROUPS: Final = 8.0
"""Groups' worth of trust that a new judge begins with: fewer, and the first odd groups would decide."""
PRIOR: Final = 0.6
"""The correlation that is presumed of it; honest judges of short answers were seen between .5 and .8."""
FULL: Final = 0.5
"""The share of the best judge's agreement from which on a judge counts whole: a specialist that looks at something else
agrees less, and is not to be silenced for it."""
FLOOR: Final = 0.1
"""Never 0: with no weight at all it would count towards no quorum, and could not come back."""
WITNESSES: Final = 3
"""Members that must see a difference: of two that disagree neither is known to be wrong."""
FAILED_CONTROL: Final = -1.0
"""What a judge that obeyed a known-bad answer, or called a known-good one wrong, is taken to have agreed with."""


class Reliability:
    """`judged`: the members that it is learnt for; others are witnesses only."""

    def __init__(self, judged: Collection[str]) -> None:
        self._sums = dict.fromkeys(judged, 0.0)
        self._groups = dict.fromkeys(judged, 0.0)

    def weights(self, weights: Mapping[str, float]) -> dict[str, float]:
        """`weights`, each judge's multiplied by its reliability. One that has weight keeps some."""
        found = self.values()
        return {name: weight * found.get(name, 1.0) for name, weight in weights.items()}

    def values(self) -> dict[str, float]:
        """Judge → FLOOR..1."""
        agreed = {
            name: (self._sums[name] + PRIOR_GROUPS * PRIOR) / (self._groups[name] + PRIOR_GROUPS) for name in self._sums
        }
        best = max(agreed.values(), default=0.0)
        if best <= 0:
            return dict.fromkeys(agreed, FLOOR if len(agreed) > 1 else 1.0)
        return {name: min(1.0, max(FLOOR, value / (FULL * best))) for name, value in agreed.items()}

    def saw(self, scores: Mapping[str, Sequence[float]], weights: Mapping[str, float]) -> None:
        """One group's scores, of the members that voted on it. Fewer than WITNESSES that see a difference teach
        nothing."""
        seeing = {name: standardised(given) for name, given in scores.items() if sees_difference(given)}
        if len(seeing) < WITNESSES:
            return
        counted = self.weights({name: weights[name] for name in seeing})
        for name in seeing:
            if name not in self._sums:
                continue
            others = [other for other in seeing if other != name]
            consensus = [
                math.fsum(counted[other] * seeing[other][i] for other in others) for i in range(len(seeing[name]))
            ]
            if sees_difference(consensus):
                self._enter(name, _correlation(seeing[name], standardised(consensus)))

    def failed_control(self, member: str) -> None:
        """It was fooled by a known-bad answer, or scored a known-good one as wrong."""
        if member in self._sums:
            self._enter(member, FAILED_CONTROL)

    def begin(self, member: str) -> None:
        """This judge is new, or has the name of another one from here on."""
        self._sums[member] = self._groups[member] = 0.0

    def leave(self, member: str) -> None:
        """It judges no more."""
        del self._sums[member], self._groups[member]

    def _enter(self, name: str, agreed: float) -> None:
        self._sums[name] = MEMORY * self._sums[name] + agreed
        self._groups[name] = MEMORY * self._groups[name] + 1

    def state_dict(self) -> dict[str, Any]:
        """Judge → [sum of agreement, groups], both with their fading weights."""
        return {name: [self._sums[name], self._groups[name]] for name in self._sums}

    def load_state_dict(self, state: Mapping[str, Any], judges: Collection[str] | None = None) -> None:
        """Of these judges, or of all: one that `state` does not have begins anew."""
        for name in self._sums.keys() if judges is None else self._sums.keys() & set(judges):
            self._sums[name], self._groups[name] = map(float, state.get(name, (0.0, 0.0)))


def _correlation(a: Sequence[float], b: Sequence[float]) -> float:
    """Of two sets of standard scores."""
    return math.fsum(x * y for x, y in zip(a, b, strict=True)) / len(a)
