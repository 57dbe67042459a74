"""From several members' scores of one group to one reward a completion. Pure.

Judges differ in scale and offset, and a policy learns to fool one of them before all. So each judge is standardised
within the group, and a rule (rules.py) makes one number R of the standard scores that they gave each completion.

A judge whose scores are all equal has no opinion on the order. It takes no part in R, where it would count against
whatever the others praise, nor in a quorum of those who see a difference.

A trainer's `reward` is to keep its meaning, so R is put back on the members' own scale: the group's mean is the
weighted mean of the members' means, and its spread is theirs as far as they agree.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from oven_learner.rewards.aggregation.rules import RULES

DEFAULT_RULE = "lower_quantile"
"""Of the rules the one that holds against two fooled judges of four and against a hostile one as well."""
FLAT = 1e-6
"""A spread below it is not an opinion on the order: the judge's standard scores are 0."""


def aggregate(
    scores: Mapping[str, Sequence[float]],
    weights: Mapping[str, float],
    *,
    quorum: int,
    rule: str = DEFAULT_RULE,
    caution: float = 0.5,
) -> list[float] | None:
    """One reward a completion, or None without a quorum.

    `scores` has the members that scored this group, each with one score a completion; those without weight do not
    count. `rule` names one of RULES, and `caution` is the λ of `cautious`. The quorum is of members that see a
    difference; where none does it is of all of them, and every completion gets the same. The scores of one voting
    member alone pass through, bit for bit. The result moves with the completions when they are reordered, exactly (sums
    are exact), and R with none of a judge's scale or offset. A completion that no voting member puts below another one
    has no lower reward. Raises KeyError for a rule that there is not.
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
    """The mean of the members' scores of each completion by their weights, on their own scale; None without a quorum.

    Not standardised, so it stays within [0, 1], and members whose scores are all alike count as well.
    """
    voting = {name: given for name, given in scores.items() if weights.get(name, 0.0) > 0}
    if len(voting) < quorum or not voting:
        return None
    total = math.fsum(weights[name] for name in voting)
    rows = range(len(next(iter(voting.values()))))
    return [math.fsum(weights[name] * given[row] for name, given in voting.items()) / total for row in rows]


def sees_difference(given: Sequence[float]) -> bool:
    """Whether a judge's scores of one group order its completions at all."""
    return _spread(given, _mean(given)) > FLAT


def agreement(scores: Mapping[str, Sequence[float]]) -> float | None:
    """Mean correlation over the pairs of members that see a difference in the group; None without such a pair."""
    z = [standardised(given) for given in scores.values() if sees_difference(given)]
    pairs = [(a, b) for i, a in enumerate(z) for b in z[i + 1 :]]
    if not pairs:
        return None
    return _mean([_mean([x * y for x, y in zip(a, b, strict=True)]) for a, b in pairs])


def standard(value: float, mean: float, spread: float) -> float:
    """The standard score of one value; 0 where the spread is none."""
    return (value - mean) / spread if spread > FLAT else 0.0


def standardised(given: Sequence[float]) -> list[float]:
    """A judge's scores of one group as standard scores."""
    mean = _mean(given)
    spread = _spread(given, mean)
    return [standard(value, mean, spread) for value in given]


def _mean(values: Sequence[float]) -> float:
    return math.fsum(values) / len(values)


def _spread(values: Sequence[float], mean: float) -> float:
    """Population standard deviation."""
    return math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
