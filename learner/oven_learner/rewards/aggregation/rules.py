"""Rules that combine several judges' standard scores of one completion into one number. Pure functions.

Each rule receives (standard score, share) for every judge that sees a difference, with shares summing to 1. Each is
monotone in each score: a completion that no judge scores below another never has the lower number. With one judge, or
judges that agree, each rule returns their score.

Ensembles reduce over-optimisation but do not prevent it, because judges make common errors (Eisenstein et al. 2023,
arXiv 2312.09244). If all are fooled, no rule helps. `oven-controller bench aggregation` measures them all.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from oven_core.errors import UnknownNameError

Scored: TypeAlias = tuple[float, float]
"""A judge's standard score of a completion, and the judge's share of the weight."""
Rule: TypeAlias = Callable[[Sequence[Scored], float], float]
"""(judges' scores, λ) → R. λ is `committee.caution`; only `cautious` uses it."""

LEVEL: Final = 0.4
"""The quantile of `lower_quantile`: the lower one of two judges, the middle one of three, the second-lowest of four and
of five. So neither the praise of two fooled judges of four nor one hostile score reaches it."""
WITHIN: Final = 0.4
"""Standard deviations around that quantile within which a judge's own score still counts. At 0 the reward's correlation
with the truth in clean groups is 0.914, at 0.4 it is 0.920, and at 1 it is 0.929. But at 1, two fooled judges of four
lift a bad answer 23 % of the time instead of 17 %."""
TRIMMED: Final = 0.25
"""Share of the weight that `trimmed` drops at either end: the highest and the lowest of four."""
ROUNDING: Final = 1e-9
"""Tolerance: shares are floating-point sums, so 0.4 of the weight may be slightly less."""


def lower_quantile(z: Sequence[Scored], _: float) -> float:
    """Return the mean of the judges' scores, each clipped to within WITHIN of their LEVEL quantile.

    The quantile alone ignores the other judges when all agree. The mean alone gives in to one outlier. Clipping to a
    window around the quantile is monotone in every score.
    """
    middle = _quantile(z, LEVEL)
    return math.fsum(share * min(max(score, middle - WITHIN), middle + WITHIN) for score, share in z)


def cautious(z: Sequence[Scored], caution: float) -> float:
    """max over caps c of mean(min(z, c)) − λ · deviation(min(z, c)), mean and deviation weighted by share.

    The mean minus a multiple of the deviation is the uncertainty-weighted objective of Coste et al. (2023, arXiv
    2310.02743). By itself it is not monotone: a judge with share w whose praise stands alone lowers the reward once
    λ > √(w/(1−w)), so that the completion that every judge likes best can end below the second. No bound on λ prevents
    that, since shares move during a run: for six equal judges the bound is already 0.45. So praise counts up to a cap c
    only, the one that serves the completion best. This is the least monotone function that is not below the plain
    formula, and is the plain formula wherever that is monotone in every judge. λ = 0 is the mean, and a large λ the
    lowest judge.

    One dissenter of share w lifts a completion with the share max(0, w − λ√(w(1−w))) only (0.03 for one of four at
    λ = ½), and lowers one with w + λ√(w(1−w)) (0.47): it guards against a judge that is fooled, and makes a hostile one
    stronger.

    As a function of the cap, mean − λ · deviation is concave, so its greatest value is at infinity (no cap) or where
    its slope is 0. With the judges above the cap of share W and the others of share V, mean a and deviation s, that is

        c = a + s / √(λ² V − W),    s² = the sum over the others of their share within V times (z − a)²
    """
    caps = [math.inf]
    for above in {score for score, _ in z}:
        below = [(score, share) for score, share in z if score < above]
        of_below = math.fsum(share for _, share in below)
        slack = caution**2 * of_below - (1 - of_below)
        if below and slack > 0:
            mean = math.fsum(share * score for score, share in below) / of_below
            variance = math.fsum(share * (score - mean) ** 2 for score, share in below) / of_below
            caps.append(mean + math.sqrt(variance / slack))
    return max(penalised([(min(score, cap), share) for score, share in z], caution) for cap in caps)


def trimmed(z: Sequence[Scored], _: float) -> float:
    """Return the mean without the highest and the lowest TRIMMED of the weight."""
    ordered, parts, start = sorted(z), [], 0.0
    for i, (score, _share) in enumerate(ordered):
        end = math.fsum(share for _, share in ordered[: i + 1])
        inside = min(end, 1 - TRIMMED) - max(start, TRIMMED)
        if inside > 0:
            parts.append((score, inside))
        start = end
    total = math.fsum(inside for _, inside in parts)
    return math.fsum(score * inside / total for score, inside in parts)


def median(z: Sequence[Scored], _: float) -> float:
    """Return the score with half of the weight on either side, or the middle between two."""
    return (_quantile(z, 0.5) - _quantile([(-score, share) for score, share in z], 0.5)) / 2


def lowest(z: Sequence[Scored], _: float) -> float:
    """Return the lowest judge's score: a single judge can sink any completion."""
    return min(score for score, _ in z)


RULES: Final[Mapping[str, Rule]] = {
    "lower_quantile": lower_quantile,
    "cautious": cautious,
    "trimmed": trimmed,
    "median": median,
    "min": lowest,
}
"""By the name in `committee.rule`."""


def rule_named(name: str) -> Rule:
    """Return the rule. Raises UnknownNameError with the nearest name."""
    if name not in RULES:
        raise UnknownNameError("committee.rule", name, RULES)
    return RULES[name]


def penalised(z: Sequence[Scored], caution: float) -> float:
    """Return mean − λ · deviation, weighted by share."""
    mean = math.fsum(share * score for score, share in z)
    return mean - caution * math.sqrt(math.fsum(share * (score - mean) ** 2 for score, share in z))


def _quantile(z: Sequence[Scored], level: float) -> float:
    """Return the lowest score with at least `level` of the weight at or below it."""
    ordered = sorted(z)
    for i, (score, _share) in enumerate(ordered):
        if math.fsum(share for _, share in ordered[: i + 1]) >= level - ROUNDING:
            return score
    return ordered[-1][0]
