"""From several members' scores of one group to one reward a completion. Pure.

Judges differ in scale and offset, and a policy learns to fool one of them before all. So each judge is standardised
within the group, and disagreement counts against a completion: with z the judge's standard score, w its weight, and the
mean and deviation over judges,

    R_i = max over c of  mean_w(min(z_i, c)) − λ · deviation_w(min(z_i, c))

The mean minus a multiple of the deviation is the uncertainty-weighted objective of Coste et al. (2023, arXiv
2310.02743). By itself it is not monotone: a judge with share w whose praise stands alone lowers the reward once
λ > √(w/(1−w)), so that the completion that every judge likes best can end below the second. No bound on λ prevents
that, since shares move during a run: for six equal judges the bound is already 0.45. So praise counts up to a cap c
only, the one that serves the completion best. This is the least monotone function that is not below the plain formula,
and is the plain formula wherever that is monotone in every judge. λ = 0 is the mean, and a large λ the lowest judge.

A judge whose scores are all equal has no opinion on the order. It takes part neither in the mean nor in the deviation,
where it would count against whatever the others praise, nor in a quorum of those who see a difference.

Ensembles mitigate over-optimisation and do not end it, since judges err together (Eisenstein et al. 2023,
arXiv 2312.09244). In a simulation with four judges on unlike scales, groups of eight and one bad completion that some
judges are fooled by, this is how often in 4,000 the bad one gains (tests/unit/learner/test_rewards_aggregate.py):

    fooled                  one     two     all     correlation with the truth where none is
    weighted mean, raw      .42     .88     1       .920
    mean of z               .15     .98     1       .933
    λ = ½                   .03     .41     1       .927
    λ = 1                   .02     .09     1       .912
    λ = 2                   .02     .06     1       .884

What the caution does to one dissenter of share w, the others agreeing: it lifts a completion with the share
max(0, w − λ√(w(1−w))) only (0.03 for one of four at λ = ½), and lowers one with w + λ√(w(1−w)) (0.47). Caution is
one-sided: it guards against a judge that is fooled, not against one that is hostile.

A trainer's `reward` is to keep its meaning, so R is put back on the members' own scale: the group's mean is the
weighted mean of the members' means, and its spread is theirs as far as they agree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

FLAT = 1e-6
"""A spread below it is not an opinion on the order: the judge's standard scores are 0."""


def aggregate(
    scores: Mapping[str, Sequence[float]], weights: Mapping[str, float], *, caution: float, quorum: int
) -> list[float] | None:
    """One reward a completion, or None without a quorum.

    `scores` has the members that scored this group, each with one score a completion; those without weight do not
    count. `caution` is λ. The quorum is of members that see a difference; where none does it is of all of them, and
    every completion gets the same. The scores of one voting member alone pass through, bit for bit. The result moves
    with the completions when they are reordered, exactly (sums are exact), and R with none of a judge's scale or
    offset. A completion that no voting member puts below another one has no lower reward.
    """
    voting = {name: given for name, given in scores.items() if weights.get(name, 0.0) > 0}
    if len(voting) < quorum or not voting:
        return None
    if len(voting) == 1:
        return [*next(iter(voting.values()))]
    means = {name: _mean(given) for name, given in voting.items()}
    spreads = {name: _spread(given, means[name]) for name, given in voting.items()}
    total = math.fsum(weights[name] for name in voting)
    level = math.fsum(weights[name] / total * means[name] for name in voting)
    scale = math.fsum(weights[name] / total * spreads[name] for name in voting)
    seeing = [name for name in voting if spreads[name] > FLAT]
    if not seeing:
        return [level] * len(next(iter(voting.values())))
    if len(seeing) < quorum:
        return None
    total = math.fsum(weights[name] for name in seeing)
    share = {name: weights[name] / total for name in seeing}
    rewards = [
        _cautious([(standard(voting[name][i], means[name], spreads[name]), share[name]) for name in seeing], caution)
        for i in range(len(next(iter(voting.values()))))
    ]
    centre = _mean(rewards)
    return [level + scale * (value - centre) for value in rewards]


def sees_difference(given: Sequence[float]) -> bool:
    """Whether a judge's scores of one group order its completions at all."""
    return _spread(given, _mean(given)) > FLAT


def _cautious(z: Sequence[tuple[float, float]], caution: float) -> float:
    """R of one completion, from each judge's standard score and share.

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
    return max(_penalised([(min(score, cap), share) for score, share in z], caution) for cap in caps)


def _penalised(z: Sequence[tuple[float, float]], caution: float) -> float:
    mean = math.fsum(share * score for score, share in z)
    return mean - caution * math.sqrt(math.fsum(share * (score - mean) ** 2 for score, share in z))


def agreement(scores: Mapping[str, Sequence[float]]) -> float | None:
    """Mean correlation over the pairs of members that see a difference in the group; None without such a pair."""
    standardised = []
    for given in scores.values():
        if sees_difference(given):
            mean = _mean(given)
            standardised.append([standard(value, mean, _spread(given, mean)) for value in given])
    pairs = [(a, b) for i, a in enumerate(standardised) for b in standardised[i + 1 :]]
    if not pairs:
        return None
    return _mean([_mean([x * y for x, y in zip(a, b, strict=True)]) for a, b in pairs])


def standard(value: float, mean: float, spread: float) -> float:
    """The standard score of one value; 0 where the spread is none."""
    return (value - mean) / spread if spread > FLAT else 0.0


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _spread(values: Sequence[float], mean: float) -> float:
    """Population standard deviation."""
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
