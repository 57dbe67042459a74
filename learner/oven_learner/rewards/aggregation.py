"""Combine several members' scores of a group into one reward per completion. Pure functions.

Judges differ in scale and offset, and a policy often learns to fool a single judge first. So each judge's scores are
standardised within the group, and a rule combines the standard scores of each completion into one number R. A judge
with equal scores has no opinion on the order, so it counts neither in R nor in a quorum of judges that see a
difference. To keep the meaning of a trainer's `reward`, R is scaled back. The group's mean is the weighted mean of the
members' means. Its spread is the members' spread, to the extent that they agree.

Ensembles reduce over-optimisation but do not prevent it, because judges make common errors (Eisenstein et al. 2023,
arXiv 2312.09244). If all are fooled, no rule helps. docs/judging.md has figures for each rule.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from oven_core.errors import UnknownNameError

Scored: TypeAlias = tuple[float, float]
"""A judge's standard score of a completion, and the judge's share of the total weight."""
Rule: TypeAlias = Callable[[Sequence[Scored], float], float]
"""A function from (scores of the judges that see a difference, λ) to R. Shares sum to 1. λ is `committee.caution`,
which only `cautious` uses.

Each rule is monotone: if no judge scores a completion below another one, its result is not lower either. With one
judge, or with judges that agree, the result is their score.
"""

DEFAULT_RULE: Final = "lower_quantile"
"""The only rule that withstands two fooled judges of four as well as one hostile judge."""
FLAT: Final = 1e-6
"""Minimum spread of a judge with an opinion on the order. Below it, the standard scores are 0."""
LEVEL: Final = 0.4
"""The quantile of `lower_quantile`: the lower of two judges, the middle of three, the second-lowest of four or five. So
neither the praise of two fooled judges out of four nor one hostile score reaches it."""
WITHIN: Final = 0.4
"""Standard deviations around that quantile within which a judge's own score still counts. At 0 the reward's correlation
with the truth in clean groups is 0.914, at 0.4 it is 0.920, and at 1 it is 0.929. But at 1, two fooled judges of four
lift a bad answer 23 % of the time instead of 17 %."""
ROUNDING: Final = 1e-9
"""Tolerance for shares, which are floating-point sums, so that 0.4 of the weight may be slightly less."""


def lower_quantile(z: Sequence[Scored], _: float) -> float:
    """Return the mean of the judges' scores, each clipped to within WITHIN of their LEVEL quantile.

    The quantile alone ignores the other judges when all agree. The mean alone gives in to one outlier.
    """
    middle = _quantile(z, LEVEL)
    return math.fsum(share * min(max(score, middle - WITHIN), middle + WITHIN) for score, share in z)


def cautious(z: Sequence[Scored], caution: float) -> float:
    """Return the maximum over caps c of mean(min(z, c)) − λ · deviation(min(z, c)), with mean and deviation weighted by
    share.

    The mean minus a multiple of the deviation (Coste et al. 2023, arXiv 2310.02743) is not monotone: a judge with share
    w whose praise stands alone lowers the reward once λ > √(w/(1−w)). No bound on λ prevents that, since shares move
    during a run. So praise counts only up to the cap c that is best for the completion. This is the smallest monotone
    function that is not below the plain formula. λ = 0 is the mean, and a large λ the lowest judge.

    One dissenter of share w lifts a completion with the share max(0, w − λ√(w(1−w))) only (0.03 for one of four at
    λ = ½), and lowers one with w + λ√(w(1−w)) (0.47): a hostile judge becomes stronger.

    mean − λ · deviation is concave in the cap, so its greatest value is at infinity (no cap) or where its slope is 0.
    With the judges above the cap of share W and the others of share V, mean a and deviation s, that is at
    c = a + s / √(λ² V − W).
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


RULES: Final[Mapping[str, Rule]] = {"lower_quantile": lower_quantile, "cautious": cautious}
"""Rules by their name in `committee.rule`."""


def rule_named(name: str) -> Rule:
    """Return the rule named `name`. Raises UnknownNameError with the nearest name."""
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


def aggregate(
    scores: Mapping[str, Sequence[float]],
    weights: Mapping[str, float],
    *,
    quorum: int,
    rule: str = DEFAULT_RULE,
    caution: float = 0.5,
) -> list[float] | None:
    """Return one reward per completion, or None without a quorum.

    `scores` has one score per completion for each member that scored this group. Members without weight do not count.
    The quorum counts members that see a difference. If none does, it counts all members, and every completion gets the
    same reward. The scores of a single voting member pass through bit for bit. Reordering completions reorders the
    result exactly (sums are exact). Raises KeyError for an unknown rule.
    """
    voting = {name: values for name, values in scores.items() if weights.get(name, 0.0) > 0}
    if len(voting) < quorum or not voting:
        return None
    if len(voting) == 1:
        return [*next(iter(voting.values()))]
    means = {name: _mean(values) for name, values in voting.items()}
    spreads = {name: _spread(values, means[name]) for name, values in voting.items()}
    total = math.fsum(weights[name] for name in voting)
    level = math.fsum(weights[name] / total * means[name] for name in voting)
    scale = math.fsum(weights[name] / total * spreads[name] for name in voting)
    seeing = [name for name in voting if spreads[name] > FLAT]
    rows = range(len(next(iter(voting.values()))))
    if not seeing:
        return [level for _ in rows]
    if len(seeing) < quorum:
        return None
    total = math.fsum(weights[name] for name in seeing)
    rewards = [
        RULES[rule](
            [(standard(voting[name][row], means[name], spreads[name]), weights[name] / total) for name in seeing],
            caution,
        )
        for row in rows
    ]
    centre = _mean(rewards)
    return [level + scale * (value - centre) for value in rewards]


def weighted_mean(
    scores: Mapping[str, Sequence[float]], weights: Mapping[str, float], *, quorum: int
) -> list[float] | None:
    """Return the weighted mean of the members' scores of each completion, or None without a quorum.

    The scores are not standardised, so the result stays within [0, 1], and members with equal scores also count.
    """
    voting = {name: values for name, values in scores.items() if weights.get(name, 0.0) > 0}
    if len(voting) < quorum or not voting:
        return None
    total = math.fsum(weights[name] for name in voting)
    rows = range(len(next(iter(voting.values()))))
    return [math.fsum(weights[name] * values[row] for name, values in voting.items()) / total for row in rows]


def sees_difference(scores: Sequence[float]) -> bool:
    """Whether a judge's scores of one group order its completions."""
    return _spread(scores, _mean(scores)) > FLAT


def agreement(scores: Mapping[str, Sequence[float]]) -> float | None:
    """Return the mean correlation over pairs of members that see a difference, or None without such a pair."""
    z = [standardised(values) for values in scores.values() if sees_difference(values)]
    correlations = [_mean([x * y for x, y in zip(a, b, strict=True)]) for i, a in enumerate(z) for b in z[i + 1 :]]
    return _mean(correlations) if correlations else None


def standard(value: float, mean: float, spread: float) -> float:
    """Return the standard score of one value, or 0 if the spread is zero."""
    return (value - mean) / spread if spread > FLAT else 0.0


def standardised(scores: Sequence[float]) -> list[float]:
    """Return a judge's scores of one group as standard scores."""
    mean = _mean(scores)
    spread = _spread(scores, mean)
    return [standard(value, mean, spread) for value in scores]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _spread(values: Sequence[float], mean: float) -> float:
    """Return the population standard deviation."""
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
