"""From several members' scores of one group to one reward a completion. Pure.

Judges differ in scale and offset, and a policy learns to fool one of them before all. So each judge is standardised
within the group, and disagreement counts against a completion: with z the judge's standard score, w its weight, and the
mean and deviation over judges,

    R_i = mean_w(z_i) − λ · deviation_w(z_i)

The mean minus a multiple of the deviation is the uncertainty-weighted objective of Coste et al. (2023, arXiv
2310.02743). Ensembles mitigate over-optimisation and do not end it, since judges err together (Eisenstein et al. 2023,
arXiv 2312.09244). In a simulation with four judges on unlike scales, groups of eight and one bad completion that some
judges are fooled by, this is how often the bad one gains (tests/unit/test_rewards_aggregate.py):

    fooled                  one     two     all     correlation with the truth where none is
    weighted mean, raw      .42     .88     1       .920
    mean of z               .15     .98     1       .933
    λ = ½                   .03     .41     1       .927
    λ = 1                   .01     .10     1       .912

What the caution does to one dissenter of share w, the others agreeing: it lifts a completion with the share
w − λ√(w(1−w)) only (0.03 for one of four at λ = ½), and lowers one with w + λ√(w(1−w)) (0.47). Caution is one-sided: it
guards against a judge that is fooled, not against one that is hostile.

A trainer's `reward` is to keep its meaning, so R is put back on the members' own scale: the group's mean is the
weighted mean of the members' means, and its spread is theirs as far as they agree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

FLAT = 1e-6
"""A spread below it is no opinion on the order: the judge's standard scores are 0."""


def aggregate(
    scores: Mapping[str, Sequence[float]], weights: Mapping[str, float], *, caution: float, quorum: int
) -> list[float] | None:
    """One reward a completion, or None without a quorum.

    `scores` has the members that scored this group, each with one score a completion; those without weight do not
    count. `caution` is λ. The scores of one voting member alone pass through, bit for bit. The result moves with the
    completions when they are reordered, exactly (sums are exact), and R with none of a judge's scale or offset.
    """
    voting = {name: given for name, given in scores.items() if weights.get(name, 0.0) > 0}
    if len(voting) < quorum or not voting:
        return None
    if len(voting) == 1:
        return [*next(iter(voting.values()))]
    total = math.fsum(weights[name] for name in voting)
    share = {name: weights[name] / total for name in voting}
    means = {name: _mean(given) for name, given in voting.items()}
    spreads = {name: _spread(given, means[name]) for name, given in voting.items()}
    level = math.fsum(share[name] * means[name] for name in voting)
    scale = math.fsum(share[name] * spreads[name] for name in voting)
    cautious = []
    for i in range(len(next(iter(voting.values())))):
        z = {name: standard(given[i], means[name], spreads[name]) for name, given in voting.items()}
        mean = math.fsum(share[name] * z[name] for name in voting)
        variance = math.fsum(share[name] * (z[name] - mean) ** 2 for name in voting)
        cautious.append(mean - caution * math.sqrt(variance))
    centre = _mean(cautious)
    return [level + scale * (value - centre) for value in cautious]


def agreement(scores: Mapping[str, Sequence[float]]) -> float | None:
    """Mean correlation over the pairs of members that see a difference in the group; None without such a pair."""
    standardised = []
    for given in scores.values():
        mean = _mean(given)
        spread = _spread(given, mean)
        if spread > FLAT:
            standardised.append([standard(value, mean, spread) for value in given])
    pairs = [(a, b) for i, a in enumerate(standardised) for b in standardised[i + 1 :]]
    if not pairs:
        return None
    return _mean([_mean([x * y for x, y in zip(a, b, strict=True)]) for a, b in pairs])


def standard(value: float, mean: float, spread: float) -> float:
    return (value - mean) / spread if spread > FLAT else 0.0


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _spread(values: Sequence[float], mean: float) -> float:
    """Population standard deviation."""
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
