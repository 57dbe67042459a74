"""Compute a batch's rewards and metrics from the members' verdicts on its groups."""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field

from oven_learner.rewards.aggregation import aggregate, agreement, sees_difference, weighted_mean
from oven_learner.rewards.group import Group
from oven_learner.rewards.reward_shape import RewardShape
from oven_learner.rewards.scores import Abstention, Scores, Verdict


@dataclass(frozen=True)
class Weighing:
    """How the members' scores count in one batch."""

    shares: Mapping[str, float]
    """Member → its share of the weight. Members without one are measured, but do not vote."""
    weights: Mapping[str, float]
    """The shares multiplied by reliability."""
    quorum: int
    rule: str
    caution: float


@dataclass
class BatchRewards:
    """A batch's rewards, one per row; None in groups without a quorum."""

    rewards: list[float | None] = field(default_factory=list)
    skipped: int = 0
    """Groups without a quorum."""
    indifferent: int = 0
    """Members that saw no difference in a group that was skipped for that reason."""
    metrics: dict[str, float] = field(default_factory=dict)


def batch_rewards(
    groups: Sequence[Group],
    verdicts: Sequence[Mapping[str, Verdict]],
    weighing: Weighing,
    shape: RewardShape | None = None,
) -> BatchRewards:
    """Return the rewards of `groups`. `verdicts` has each member's verdict on each group."""
    outcome, agreed = BatchRewards(), []
    shaped: list[tuple[Sequence[str], Sequence[float], Sequence[float]]] = []
    for group, of_group in zip(groups, verdicts, strict=True):
        scores = {name: verdict for name, verdict in of_group.items() if not isinstance(verdict, Abstention)}
        rewards = _of_group(group, scores, weighing, shape, shaped)
        voting = {name: values for name, values in scores.items() if weighing.shares[name] > 0}
        outcome.skipped += rewards is None
        if rewards is None and len(voting) >= weighing.quorum:
            outcome.indifferent += sum(not sees_difference(values) for values in voting.values())
        outcome.rewards += [None] * len(group.completions) if rewards is None else rewards
        if (correlation := agreement(voting)) is not None:
            agreed.append(correlation)
    if agreed:
        outcome.metrics["committee/agreement"] = math.fsum(agreed) / len(agreed)
    if shape is not None and shaped:
        outcome.metrics |= shape.measured(*zip(*shaped, strict=True))
    return outcome


def _of_group(
    group: Group,
    scores: Mapping[str, Scores],
    weighing: Weighing,
    shape: RewardShape | None,
    shaped: list[tuple[Sequence[str], Sequence[float], Sequence[float]]],
) -> list[float] | None:
    if shape is None:
        return aggregate(scores, weighing.weights, quorum=weighing.quorum, rule=weighing.rule, caution=weighing.caution)
    merits = weighted_mean(scores, weighing.shares, quorum=weighing.quorum)
    if merits is None:
        return None
    rewards = shape.rewards(group.as_written, merits)
    shaped.append((group.as_written, merits, rewards))
    return rewards
