"""How many of three families' pairs are right, by formula.

Families i = 1, 2, 3 take the right one of K actions with probability pᵢ and each of the others with
qᵢ = (1 − pᵢ) / (K − 1); the student with s. M = Σ pᵢpⱼ − 2p₁p₂p₃ is the probability that at least two are right, m the
same of qᵢ for one wrong action. On their own:

    against the student  right (1 − s) M          wrong m (K − 2 + s)
    with the student     right s (M − p₁p₂p₃)     wrong (1 − s) (m − q₁q₂q₃)

In a common draw of skill p all agree: against the student, right (1 − s) p, wrong (1 − p) (K − 2 + s) / (K − 1). Right
is a pair whose preferred action is; of two wrong actions neither should be preferred.
"""

from __future__ import annotations

import math
from dataclasses import dataclass

from tests.support.scripted_replay import Skills


@dataclass(frozen=True)
class Expected:
    """Per state."""

    right: float
    wrong: float

    @property
    def share(self) -> float:
        """Right pairs of all."""
        return self.right / (self.right + self.wrong)


def expected(skills: Skills) -> Expected:
    """Raises ValueError for anything but three families: the formula has three."""
    if len(skills.families) != 3:
        raise ValueError(f"{len(skills.families)} families; the formula is for 3")
    p, s, k, alone = skills.families, skills.student, skills.actions, 1 - skills.together
    q = [(1 - one) / (k - 1) for one in p]
    two_right, two_wrong = _two_of_three(p), _two_of_three(q)
    right = (1 - s) * two_right + s * (two_right - math.prod(p))
    wrong = two_wrong * (k - 2 + s) + (1 - s) * (two_wrong - math.prod(q))
    common_right = (1 - s) * skills.common
    common_wrong = (1 - skills.common) * (k - 2 + s) / (k - 1)
    return Expected(
        alone * right + skills.together * common_right,
        alone * wrong + skills.together * common_wrong,
    )


def _two_of_three(p: tuple[float, ...] | list[float]) -> float:
    return p[0] * p[1] + p[0] * p[2] + p[1] * p[2] - 2 * math.prod(p)
