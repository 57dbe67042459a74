"""Combine several members' scores of one group into one reward per completion. Pure functions.

Judges differ in scale and offset, and a policy often learns to fool a single judge first. So each judge is standardised
within the group, and a rule (rules.py) combines the standard scores of each completion into one number R.

A judge with equal scores has no opinion on the order. It does not contribute to R, where it would count against
completions that others praise, nor to a quorum of judges that see a difference.

To keep the meaning of a trainer's `reward`, R is scaled back. The group's mean is the weighted mean of the members'
means, and its spread is theirs as far as they agree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from oven_learner.rewards.aggregation.rules import RULES

DEFAULT_RULE = "lower_quantile"
"""The only rule that withstands two fooled judges of four as well as one hostile judge."""
FLAT = 1e-6
"""Spreads below it are not an opinion on the order; the standard scores are then 0."""


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
    `rule` is a name in RULES, and `caution` is the λ of `cautious`. The quorum counts members that see a difference. If
    none does, it counts all members, and every completion gets the same reward. The scores of a single voting member
    pass through bit for bit. Reordering completions reorders the result exactly (sums are exact). R does not depend on
    a judge's scale or offset. A completion that no voting member scores below another never has the lower reward.
    Raises KeyError for an unknown rule.
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
    if not seeing:
        return [level] * len(next(iter(voting.values())))
    if len(seeing) < quorum:
        return None
    total = math.fsum(weights[name] for name in seeing)
    share = {name: weights[name] / total for name in seeing}
    combined = RULES[rule]
    rewards = [
        combined([(standard(voting[name][i], means[name], spreads[name]), share[name]) for name in seeing], caution)
        for i in range(len(next(iter(voting.values()))))
    ]
    centre = _mean(rewards)
    return [level + scale * (value - centre) for value in rewards]


def weighted_mean(
    scores: Mapping[str, Sequence[float]], weights: Mapping[str, float], *, quorum: int
) -> list[float] | None:
    """Return the weighted mean of the members' scores of each completion; None without a quorum.

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
    """Return the mean correlation over pairs of members that see a difference in the group; None without such a
    pair."""
    z = [standardised(values) for values in scores.values() if sees_difference(values)]
    pairs = [(a, b) for i, a in enumerate(z) for b in z[i + 1 :]]
    if not pairs:
        return None
    return _mean([_mean([x * y for x, y in zip(a, b, strict=True)]) for a, b in pairs])


def standard(value: float, mean: float, spread: float) -> float:
    """Return the standard score of one value; 0 if the spread is zero."""
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
