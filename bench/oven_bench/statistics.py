"""What a comparison of two arms says: a difference, the interval around it, and the word for both."""

from __future__ import annotations

import math
from collections.abc import Sequence
from dataclasses import dataclass
from statistics import NormalDist, fmean, stdev
from typing import Literal

T_975 = (
    12.706, 4.303, 3.182, 2.776, 2.571, 2.447, 2.365, 2.306, 2.262, 2.228, 2.201, 2.179, 2.160, 2.145, 2.131,
    2.120, 2.110, 2.101, 2.093, 2.086, 2.080, 2.074, 2.069, 2.064, 2.060, 2.056, 2.052, 2.048, 2.045, 2.042,
)  # fmt: skip
"""The .975 quantile of Student's t with 1, 2, … 30 degrees of freedom."""

Word = Literal["HELPS", "NO EFFECT", "HARMS", "INCONCLUSIVE"]


def word(low: float, high: float, smallest: float) -> Word:
    """The word for a difference, of which more is better, from the ends of its 95 % interval and the smallest effect of
    interest: no smaller difference, up or down, would matter to anybody, and the one who asks states it beforehand.

    HELPS and HARMS: the interval does not hold 0. NO EFFECT: it holds 0, and no effect of interest. INCONCLUSIVE: it
    is wide, that is, it holds both. That a difference was not found is not evidence that there is none.
    """
    if low > 0:
        return "HELPS"
    if high < 0:
        return "HARMS"
    return "NO EFFECT" if -smallest < low and high < smallest else "INCONCLUSIVE"


@dataclass(frozen=True, slots=True)
class Paired:
    """Of `one` minus `other`, pair by pair; `low` and `high` bound the mean with 95 % confidence, if the differences
    are about normal."""

    mean: float
    low: float
    high: float


def paired(one: Sequence[float], other: Sequence[float]) -> Paired:
    """Raises ValueError below two pairs: one difference says nothing of its spread."""
    differences = [a - b for a, b in zip(one, other, strict=True)]
    if len(differences) < 2:
        raise ValueError(f"{len(differences)} pairs have no interval; give at least 2 seeds")
    mean = fmean(differences)
    half = quantile(len(differences) - 1) * stdev(differences) / math.sqrt(len(differences))
    return Paired(mean, mean - half, mean + half)


def quantile(freedom: int) -> float:
    """t at .975. Beyond 30 degrees: z + (z³ + z)/4ν + (5z⁵ + 16z³ + 3z)/96ν² (Abramowitz & Stegun 26.7.5)."""
    if freedom <= len(T_975):
        return T_975[freedom - 1]
    z = NormalDist().inv_cdf(0.975)
    return z + (z**3 + z) / (4 * freedom) + (5 * z**5 + 16 * z**3 + 3 * z) / (96 * freedom**2)
