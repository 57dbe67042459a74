"""From what members said of a batch's groups to its rewards, and what is measured on the way."""

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
    """Member → its share of the weight; without one it is measured, and does not vote."""
    weights: Mapping[str, float]
    """The same, by how far each is to be believed."""
    quorum: int
    rule: str
    caution: float


@dataclass
class BatchRewards:
    """A batch's rewards, a row each, None in groups without a quorum."""

    rewards: list[float | None] = field(default_factory=list)
    skipped: int = 0
    """Groups without a quorum."""
    indifferent: int = 0
    """Members who saw no difference in a group that was skipped for that."""
    metrics: dict[str, float] = field(default_factory=dict)


def batch_rewards(
    groups: Sequence[Group],
    verdicts: Sequence[Mapping[str, Verdict]],
    weighing: Weighing,
    shape: RewardShape | None = None,
) -> BatchRewards:
    """The rewards of `groups`, by `verdicts`, what each member said of each."""
    found, agreed = BatchRewards(), []
    shaped: list[tuple[Sequence[str], Sequence[float], Sequence[float]]] = []
    for group, of_group in zip(groups, verdicts, strict=True):
        scores = {name: verdict for name, verdict in of_group.items() if not isinstance(verdict, Abstention)}
        given = _of_group(group, scores, weighing, shape, shaped)
        voting = {name: said for name, said in scores.items() if weighing.shares[name] > 0}
        found.skipped += given is None
        if given is None and len(voting) >= weighing.quorum:
            found.indifferent += sum(not sees_difference(said) for said in voting.values())
        found.rewards += [None] * len(group.completions) if given is None else given
        if (one := agreement(voting)) is not None:
            agreed.append(one)
    if agreed:
        found.metrics["committee/agreement"] = math.fsum(agreed) / len(agreed)
    if shape is not None and shaped:
        found.metrics |= shape.measured(*zip(*shaped, strict=True))
    return found


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
    given = shape.rewards(group.as_written, merits)
    shaped.append((group.as_written, merits, given))
    return given
