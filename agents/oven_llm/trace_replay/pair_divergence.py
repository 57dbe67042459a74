"""Whether pairs differ from random pairs of the same states: KL divergence with a permutation test.

A random pair of a state is any two of its different actions, in either order. If the preferred action were independent
of what the actions are, a mined pair would be such a random pair. So under that hypothesis the null holds exactly, for
any feature and any number of pairs. A state has at most one pair.

KL(P‖Q) in nats: P is a feature's distribution over the mined pairs, and Q its mean over all random pairs. Q is positive
wherever P is, because the mined pair is one of the random ones; so nothing is smoothed. With few pairs KL is large by
chance too: compare it with the mean of its null, not with 0.
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
"""The smallest p is 1 / (PERMUTATIONS + 1)."""
BINS: Final = 2
"""Powers of two in either direction, so the feature `length` has 5 values: at least four times as long, twice, …"""
Feature: TypeAlias = Callable[[MinedPair, Action, Action], Hashable]
"""(the pair's state, a preferred action, a rejected action) → one of few values."""


def preferred_tool(_: MinedPair, chosen: Action, rejected: Action) -> Hashable:
    """Return the preferred tool. Together with the rejected one it would have more values than most files have
    pairs."""
    return chosen.tool


def rejected_tool(_: MinedPair, chosen: Action, rejected: Action) -> Hashable:
    """Return the rejected tool."""
    return rejected.tool


def length(_: MinedPair, chosen: Action, rejected: Action) -> Hashable:
    """Return how much longer the preferred action is, in powers of two."""
    return max(-BINS, min(BINS, round(log_length_ratio(chosen, rejected))))


def repeats(mined: MinedPair, chosen: Action, rejected: Action) -> Hashable:
    """Return which of the two the student had done before."""
    return chosen in mined.earlier, rejected in mined.earlier


FEATURES: Final[Mapping[str, Feature]] = {
    "preferred tool": preferred_tool,
    "rejected tool": rejected_tool,
    "length": length,
    "repeats": repeats,
}


def log_length_ratio(chosen: Action, rejected: Action) -> float:
    """Return log2 of the ratio of their lengths in characters."""
    return math.log2(max(1, len(str(chosen))) / max(1, len(str(rejected))))


@dataclass(frozen=True)
class Divergence:
    """A statistic of the mined pairs next to that of random pairs."""

    value: float
    null_mean: float
    null_high: float
    """The null's 95th percentile."""
    p: float
    """Share of random draws that are at least as large. The mined pairs count as one of them."""


@dataclass(frozen=True)
class LengthBias:
    """Whether preferred actions are longer than rejected ones."""

    longer: int
    shorter: int
    mean_log_ratio: float
    """Mean log2 of the ratio of characters."""
    p: float
    """Two-sided, with the same null."""


@dataclass(frozen=True)
class Information:
    """What the pairs say beyond random pairs."""

    pairs: int
    p: float
    """One test over all features: the sum of their KL, each in standard deviations of its null. Rely on this one; a
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
    """Return the result of the test, None without a pair. Raises ValueError for less than one permutation."""
    if permutations < 1:
        raise ValueError(f"{permutations} permutations; give 1 or more")
    if not pairs:
        return None
    options = [_ordered_pairs(mined) for mined in pairs]
    observed = [choices.index((mined.chosen, mined.rejected)) for mined, choices in zip(pairs, options, strict=True)]
    tables = {name: _FeatureTable(pairs, options, feature) for name, feature in features.items()}
    ratios = [[log_length_ratio(*choice) for choice in choices] for choices in options]
    rng = random.Random(seed)
    draws = [observed, *([int(rng.random() * len(choices)) for choices in options] for _ in range(permutations))]
    values = {name: [table.divergence(draw) for draw in draws] for name, table in tables.items()}
    sums = [math.fsum(column) for column in zip(*map(_standardised, values.values()), strict=True)]
    means = [sum(ratio[index] for ratio, index in zip(ratios, draw, strict=True)) / len(pairs) for draw in draws]
    own_ratios = [ratio[index] for ratio, index in zip(ratios, observed, strict=True)]
    as_extreme = sum(abs(mean) >= abs(means[0]) - 1e-12 for mean in means)
    bias = LengthBias(
        sum(ratio > 0 for ratio in own_ratios),
        sum(ratio < 0 for ratio in own_ratios),
        means[0],
        as_extreme / len(means),
    )
    by_feature = {name: _divergence(column) for name, column in values.items()}
    return Information(len(pairs), _share_at_least_first(sums), by_feature, bias)


def log_ratio_feature(
    pairs: Sequence[MinedPair], log_prob: Callable[[MinedPair, Action], float | None]
) -> tuple[list[MinedPair], Feature]:
    """Return a feature of a policy's log-ratios, log π(chosen) − log π(rejected): their sign, and whether they are
    above the median of all random pairs of these states. Also return the pairs whose candidates all have a
    `log_prob`."""
    scored = [mined for mined in pairs if all(log_prob(mined, action) is not None for action in mined.candidates)]

    def ratio(mined: MinedPair, chosen: Action, rejected: Action) -> float:
        return (log_prob(mined, chosen) or 0.0) - (log_prob(mined, rejected) or 0.0)

    sizes = sorted(abs(ratio(mined, *choice)) for mined in scored for choice in _ordered_pairs(mined))
    median = sizes[len(sizes) // 2] if sizes else 0.0

    def feature(mined: MinedPair, chosen: Action, rejected: Action) -> Hashable:
        value = ratio(mined, chosen, rejected)
        return (value > 0) - (value < 0), abs(value) > median

    return scored, feature


def _ordered_pairs(mined: MinedPair) -> list[tuple[Action, Action]]:
    return [(first, second) for first in mined.candidates for second in mined.candidates if first != second]


class _FeatureTable:
    """A feature's value for each random pair, and the distribution of these values."""

    def __init__(
        self, pairs: Sequence[MinedPair], options: Sequence[Sequence[tuple[Action, Action]]], feature: Feature
    ) -> None:
        self._values = [
            [feature(mined, *choice) for choice in choices] for mined, choices in zip(pairs, options, strict=True)
        ]
        expected: Counter[Hashable] = Counter()
        for values in self._values:
            for value in values:
                expected[value] += 1 / len(values)  # type: ignore[assignment]
        self._expected = expected

    def divergence(self, draw: Sequence[int]) -> float:
        """Return the KL in nats of the drawn pairs. `draw`: an index per state."""
        counts = Counter([values[index] for values, index in zip(self._values, draw, strict=True)])
        total = len(self._values)
        kl = math.fsum(count / total * math.log(count / self._expected[value]) for value, count in counts.items())
        return max(0.0, kl)  # only rounding makes it negative


def _divergence(values: Sequence[float]) -> Divergence:
    """`values`: the mined pairs' first, then those of random draws."""
    null = sorted(values[1:])
    percentile = null[int(0.95 * (len(null) - 1))]
    return Divergence(values[0], math.fsum(null) / len(null), percentile, _share_at_least_first(values))


def _share_at_least_first(values: Sequence[float]) -> float:
    """Return the share of values at least as large as the first, which counts too. Differences by rounding are ties."""
    return sum(value >= values[0] - 1e-12 for value in values) / len(values)


def _standardised(values: Sequence[float]) -> list[float]:
    """Standardise by the mean and spread of all values, the first included: all are treated alike, so the null stays
    exact."""
    mean = math.fsum(values) / len(values)
    spread = math.sqrt(math.fsum((value - mean) ** 2 for value in values) / len(values))
    return [(value - mean) / spread if spread > 0 else 0.0 for value in values]
