"""Pure functions that combine the members' scores of a group into one reward per completion.

Judges differ in scale and offset, and a policy often learns to fool a single judge first. So the scores of each judge
are standardised within the group, and a rule combines the standard scores of each completion into one number R. A judge
with equal scores has no opinion on the order, so it does not count in R or towards the quorum. R is then scaled back,
so that a trainer's `reward` keeps its meaning. The rewards' mean is the weighted mean of the members' means. Their
spread is the weighted mean of the members' spreads, reduced where the members disagree.

Ensembles reduce over-optimisation but do not prevent it, because judges share some errors (Eisenstein et al. 2023,
arXiv 2312.09244). If all judges are fooled, no rule helps. docs/judging.md has figures for each rule.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Final, TypeAlias

from oven_core.errors import UnknownNameError

WeightedScore: TypeAlias = tuple[float, float]
"""A judge's standard score of a completion, and the judge's share of the total weight."""
Rule: TypeAlias = Callable[[Sequence[WeightedScore], float], float]
"""A function that maps (scores of the judges that see a difference, λ) to R. The shares sum to 1. λ is
`committee.caution`, which only `cautious` uses.

Each rule is monotone: if no judge scores one completion below another, its R is not lower either. With a single judge,
or with judges that agree, R is their score.
"""

DEFAULT_RULE: Final = "lower_quantile"
"""The only rule that withstands both two fooled judges out of four and one hostile judge."""
MIN_SPREAD: Final = 1e-6
"""Minimum spread of a judge with an opinion on the order. Below it, all standard scores are 0."""
QUANTILE: Final = 0.4
"""Quantile of `lower_quantile`. With equal weights, it is the lower of two scores, the middle of three, and the
second-lowest of four or five. So neither two fooled judges out of four nor one hostile judge can change it much."""
CLIP_DISTANCE: Final = 0.4
"""Maximum distance of a score from that quantile, in standard deviations. Scores beyond it are clipped. A distance of 1
is slightly more accurate in clean groups, but two fooled judges out of four then raise a bad answer more often."""
# Correlation of the reward with the truth in clean groups: 0.914 at a distance of 0, 0.920 at 0.4 and 0.929 at 1.
# Share of bad answers that two fooled judges out of four raise: 17 % at 0.4 and 23 % at 1.
SHARE_TOLERANCE: Final = 1e-9
"""Tolerance in comparisons of summed shares, because a sum of 0.4 may be slightly lower in floating point."""


def lower_quantile(scores: Sequence[WeightedScore], _: float) -> float:
    """Return the weighted mean of the scores, each clipped to within CLIP_DISTANCE of their QUANTILE. The quantile
    alone would ignore the other judges when all agree. The mean alone would follow a single outlier."""
    quantile = _quantile(scores, QUANTILE)
    low, high = quantile - CLIP_DISTANCE, quantile + CLIP_DISTANCE
    return math.fsum(share * min(max(score, low), high) for score, share in scores)


def cautious(scores: Sequence[WeightedScore], caution: float) -> float:
    """Return the maximum over caps c of mean(min(z, c)) − λ · deviation(min(z, c)) for scores z.

    The mean and the standard deviation are weighted by share. λ = 0 gives the mean, and a large λ gives the lowest
    score. The mean minus a multiple of the deviation (Coste et al. 2023, arXiv 2310.02743) is not monotone. A single
    judge with share w that praises a completion lowers its reward if λ > √(w/(1−w)). No bound on λ prevents this,
    because shares change during a run. So praise only counts up to the cap c that is best for the completion. The
    result is the smallest monotone function that is never below mean − λ · deviation.

    One dissenter with share w raises a completion with an effective share of max(0, w − λ√(w(1−w))), which is 0.03 for
    one of four at λ = ½. It lowers one with w + λ√(w(1−w)), which is 0.47. So a hostile judge becomes stronger.

    mean − λ · deviation is concave in the cap, so its maximum is at infinity (no cap) or where its slope is 0. Let W be
    the share of the judges above the cap, and V, a and s the share, mean and deviation of the others. Then the slope is
    0 at c = a + s / √(λ² V − W).
    """
    caps = [math.inf]
    for lowest_capped in {score for score, _ in scores}:
        uncapped = [(score, share) for score, share in scores if score < lowest_capped]
        uncapped_share = math.fsum(share for _, share in uncapped)
        slack = caution**2 * uncapped_share - (1 - uncapped_share)  # λ² V − W
        if uncapped and slack > 0:
            mean = math.fsum(share * score for score, share in uncapped) / uncapped_share
            variance = math.fsum(share * (score - mean) ** 2 for score, share in uncapped) / uncapped_share
            caps.append(mean + math.sqrt(variance / slack))
    return max(penalised_mean([(min(score, cap), share) for score, share in scores], caution) for cap in caps)


RULES: Final[Mapping[str, Rule]] = {"lower_quantile": lower_quantile, "cautious": cautious}
"""The values of the setting `committee.rule` and their rules."""


def find_rule(name: str) -> Rule:
    """Return the rule named `name`. Raises UnknownNameError with the nearest name."""
    if name not in RULES:
        raise UnknownNameError("committee.rule", name, RULES)
    return RULES[name]


def penalised_mean(scores: Sequence[WeightedScore], caution: float) -> float:
    """Return mean − λ · deviation, weighted by share."""
    mean = math.fsum(share * score for score, share in scores)
    return mean - caution * math.sqrt(math.fsum(share * (score - mean) ** 2 for score, share in scores))


def _quantile(scores: Sequence[WeightedScore], level: float) -> float:
    """Return the lowest score with at least `level` of the weight at or below it."""
    ordered = sorted(scores)
    for count, (score, _share) in enumerate(ordered, start=1):
        if math.fsum(share for _, share in ordered[:count]) >= level - SHARE_TOLERANCE:
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
    """Return one reward per completion, or None without a quorum. `scores` has one score per completion for each member
    that scored this group. Members without weight do not count. The quorum counts members that see a difference. If
    none does, it counts all members, and every completion gets the same reward. The scores of a single voter are
    returned unchanged. Sums are exact, so reordering the completions reorders the result exactly. Raises KeyError for
    an unknown rule."""
    voters = {name: values for name, values in scores.items() if weights.get(name, 0.0) > 0}
    if len(voters) < quorum or not voters:
        return None
    first_scores = next(iter(voters.values()))
    if len(voters) == 1:
        return [*first_scores]
    means = {name: _mean(values) for name, values in voters.items()}
    spreads = {name: _spread(values, means[name]) for name, values in voters.items()}
    voter_weight = math.fsum(weights[name] for name in voters)
    group_mean = math.fsum(weights[name] / voter_weight * means[name] for name in voters)
    group_spread = math.fsum(weights[name] / voter_weight * spreads[name] for name in voters)
    decisive_names = [name for name in voters if spreads[name] > MIN_SPREAD]
    rows = range(len(first_scores))
    if not decisive_names:
        return [group_mean for _ in rows]
    if len(decisive_names) < quorum:
        return None
    decisive_weight = math.fsum(weights[name] for name in decisive_names)
    shares = {name: weights[name] / decisive_weight for name in decisive_names}
    results = []
    for row in rows:
        row_scores = [
            (standard_score(voters[name][row], means[name], spreads[name]), share) for name, share in shares.items()
        ]
        results.append(RULES[rule](row_scores, caution))
    centre = _mean(results)
    return [group_mean + group_spread * (value - centre) for value in results]


def weighted_mean(
    scores: Mapping[str, Sequence[float]], weights: Mapping[str, float], *, quorum: int
) -> list[float] | None:
    """Return the weighted mean of the members' scores of each completion, or None without a quorum. The scores are not
    standardised, so the result stays within [0, 1], and members with equal scores also count."""
    voters = {name: values for name, values in scores.items() if weights.get(name, 0.0) > 0}
    if len(voters) < quorum or not voters:
        return None
    total = math.fsum(weights[name] for name in voters)
    rows = range(len(next(iter(voters.values()))))
    return [math.fsum(weights[name] * values[row] for name, values in voters.items()) / total for row in rows]


def sees_difference(scores: Sequence[float]) -> bool:
    """Return whether a judge's scores of one group differ enough to order its completions."""
    return _spread(scores, _mean(scores)) > MIN_SPREAD


def agreement(scores: Mapping[str, Sequence[float]]) -> float | None:
    """Return the mean correlation over pairs of members that see a difference, or None if fewer than two see one."""
    standard_scores = [standardise(values) for values in scores.values() if sees_difference(values)]
    pairs = itertools.combinations(standard_scores, 2)
    correlations = [_mean([x * y for x, y in zip(first, second, strict=True)]) for first, second in pairs]
    return _mean(correlations) if correlations else None


def standard_score(value: float, mean: float, spread: float) -> float:
    """Return the standard score of one value, or 0 if the spread is below MIN_SPREAD."""
    return (value - mean) / spread if spread > MIN_SPREAD else 0.0


def standardise(scores: Sequence[float]) -> list[float]:
    """Return a judge's scores of one group as standard scores."""
    mean = _mean(scores)
    spread = _spread(scores, mean)
    return [standard_score(value, mean, spread) for value in scores]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _spread(values: Sequence[float], mean: float) -> float:
    """Return the population standard deviation."""
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
