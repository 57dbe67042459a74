"""Whether pairs say more than random pairs of the same states: KL divergence with a permutation null.

A random pair of a state is any two of its different actions, in either order. That is what a mined pair would be if
which action wins had nothing to do with what it is; so under that hypothesis the null holds exactly, for any feature
and any number of pairs. A state has at most one pair.

KL(P‖Q) in nats: P, a feature's distribution over the mined pairs; Q, its mean over all random pairs. Q is positive
wherever P is, since the mined pair is among the random ones; so nothing is smoothed. With few pairs KL is large by
chance, too: read it beside its null's mean, not beside 0.
"""

from __future__ import annotations

import math
import random
from collections import Counter
from collections.abc import Callable, Hashable, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from oven_llm.trace_replay.pairs import MinedPair
from oven_runs.traces.comparable_actions import Action

PERMUTATIONS: Final = 999
"""The least p is 1 / (PERMUTATIONS + 1)."""
BINS: Final = 2
"""Of a ratio's length in either direction, so 5 values of the feature `length`: double, longer, as long, …"""
Feature: TypeAlias = Callable[[MinedPair, Action, Action], Hashable]
"""(the pair's state, a preferred action, a rejected one) → a value of few."""


def preferred_tool(_: MinedPair, chosen: Action, rejected: Action) -> Hashable:
    """Which tool is preferred. With the rejected one as a pair it would have more values than most files have pairs."""
    return chosen.tool


def rejected_tool(_: MinedPair, chosen: Action, rejected: Action) -> Hashable:
    """Which tool is rejected."""
    return rejected.tool


def length(_: MinedPair, chosen: Action, rejected: Action) -> Hashable:
    """How much longer the preferred action is, in powers of two."""
    return max(-BINS, min(BINS, round(log_length_ratio(chosen, rejected))))


def repeats(at: MinedPair, chosen: Action, rejected: Action) -> Hashable:
    """Which of the two the student had done before."""
    return chosen in at.earlier, rejected in at.earlier


FEATURES: Final[Mapping[str, Feature]] = {
    "preferred tool": preferred_tool,
    "rejected tool": rejected_tool,
    "length": length,
    "repeats": repeats,
}


def log_length_ratio(chosen: Action, rejected: Action) -> float:
    """log2 of the ratio of their characters."""
    return math.log2(max(1, len(str(chosen))) / max(1, len(str(rejected))))


@dataclass(frozen=True)
class Divergence:
    """A statistic of the mined pairs beside that of random ones."""

    value: float
    null_mean: float
    null_high: float
    """Its 95th percentile."""
    p: float
    """The share of random draws that are at least as large, the mined pairs counted among them."""


@dataclass(frozen=True)
class LengthBias:
    """Whether preferred actions are longer than rejected ones."""

    longer: int
    shorter: int
    mean_log_ratio: float
    """Mean log2 of the characters' ratio."""
    p: float
    """Two-sided, by the same null."""


@dataclass(frozen=True)
class Information:
    """What pairs say."""

    pairs: int
    p: float
    """Of all features in one test: the sum of their KL, each in standard deviations of its null. The one to go by; a
    feature's own p is one of several."""
    by_feature: Mapping[str, Divergence]
    length: LengthBias


def information(
    pairs: Sequence[MinedPair],
    features: Mapping[str, Feature] = FEATURES,
    *,
    permutations: int = PERMUTATIONS,
    seed: int = 0,
) -> Information | None:
    """The test; None where there is no pair. Raises ValueError for less than one permutation."""
    if permutations < 1:
        raise ValueError(f"{permutations} permutations; give 1 or more")
    if not pairs:
        return None
    options = [_ordered(one) for one in pairs]
    mined = [found.index((one.chosen, one.rejected)) for one, found in zip(pairs, options, strict=True)]
    coded = {name: _Coded(pairs, options, feature) for name, feature in features.items()}
    ratios = [[log_length_ratio(*two) for two in found] for found in options]
    chance = random.Random(seed)
    draws = [[int(chance.random() * len(found)) for found in options] for _ in range(permutations)]
    values = {name: [one.divergence(drawn) for drawn in (mined, *draws)] for name, one in coded.items()}
    sums = [math.fsum(one) for one in zip(*map(_standardised, values.values()), strict=True)]
    means = [sum(ratio[at] for ratio, at in zip(ratios, drawn, strict=True)) / len(pairs) for drawn in (mined, *draws)]
    own = [ratio[at] for ratio, at in zip(ratios, mined, strict=True)]
    as_far = sum(abs(one) >= abs(means[0]) - 1e-12 for one in means)
    bias = LengthBias(sum(one > 0 for one in own), sum(one < 0 for one in own), means[0], as_far / len(means))
    return Information(len(pairs), _share_at_least(sums), {name: _judged(one) for name, one in values.items()}, bias)


def log_ratio_feature(
    pairs: Sequence[MinedPair], log_prob: Callable[[MinedPair, Action], float | None]
) -> tuple[list[MinedPair], Feature]:
    """A feature of a policy's log-ratios, log π(chosen) − log π(rejected): their sign, and whether they are above the
    median of all random pairs of these states; with the pairs all of whose candidates the policy was asked about."""
    known = [one for one in pairs if all(log_prob(one, action) is not None for action in one.candidates)]

    def ratio(at: MinedPair, chosen: Action, rejected: Action) -> float:
        return (log_prob(at, chosen) or 0.0) - (log_prob(at, rejected) or 0.0)

    sizes = sorted(abs(ratio(one, *two)) for one in known for two in _ordered(one))
    middle = sizes[len(sizes) // 2] if sizes else 0.0

    def feature(at: MinedPair, chosen: Action, rejected: Action) -> Hashable:
        value = ratio(at, chosen, rejected)
        return (value > 0) - (value < 0), abs(value) > middle

    return known, feature


def _ordered(one: MinedPair) -> list[tuple[Action, Action]]:
    return [(first, second) for first in one.candidates for second in one.candidates if first != second]


class _Coded:
    """A feature's value of each random pair, and the distribution that these give."""

    def __init__(
        self, pairs: Sequence[MinedPair], options: Sequence[Sequence[tuple[Action, Action]]], feature: Feature
    ) -> None:
        self._values = [[feature(one, *two) for two in found] for one, found in zip(pairs, options, strict=True)]
        expected: Counter[Hashable] = Counter()
        for found in self._values:
            for value in found:
                expected[value] += 1 / len(found)  # type: ignore[assignment]
        self._expected = expected

    def divergence(self, drawn: Sequence[int]) -> float:
        """KL in nats of the pairs that were drawn, an index for each state. Both sums are over as many states."""
        counts = Counter([found[at] for found, at in zip(self._values, drawn, strict=True)])
        total = len(self._values)
        found = math.fsum(count / total * math.log(count / self._expected[value]) for value, count in counts.items())
        return max(0.0, found)  # it is below 0 by rounding alone


def _judged(values: Sequence[float]) -> Divergence:
    """The first is the mined pairs'."""
    null = sorted(values[1:])
    return Divergence(
        values[0], math.fsum(null) / len(null), null[int(0.95 * (len(null) - 1))], _share_at_least(values)
    )


def _share_at_least(values: Sequence[float]) -> float:
    """Of all that are at least as large as the first, itself counted. Ties are equal whatever their last digits."""
    return sum(one >= values[0] - 1e-12 for one in values) / len(values)


def _standardised(values: Sequence[float]) -> list[float]:
    """By the mean and spread of all, the first among them: so all are treated alike, and the null stays exact."""
    mean = math.fsum(values) / len(values)
    spread = math.sqrt(math.fsum((one - mean) ** 2 for one in values) / len(values))
    return [(one - mean) / spread if spread > 0 else 0.0 for one in values]
