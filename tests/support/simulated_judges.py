"""Groups of completions whose worth is known, and what four simulated judges say of them. Pure, and drawn from a seed.

The judges' scales are .5, .8, 1.2 and 2 and their noise is .7 of the spread of the truth, so that two of them correlate
by .67 and one with the truth by .82. Groups are of eight completions. An adversary sits in the place of one or two of
the judges: of the same ones in all groups, as a committee has it, or of others in each, which nothing can be learnt of.
"""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Final, TypeAlias

from oven_learner.rewards.aggregation import aggregate, standardise
from oven_learner.rewards.reliability import Reliability

SCALES: Final = {"a": 0.5, "b": 0.8, "c": 1.2, "d": 2.0}
"""Judge → its scale."""
NOISE: Final = 0.7
"""Of the spread of the truth."""
SIZE: Final = 8
BAD: Final = -1.5
"""Standard deviations that the bad completion is worth: it is the first one of its group."""
TAKEN_FOR: Final = 4.0
"""What a judge that is fooled takes it for; a hostile one takes the best completion for as bad."""
WEIGHTS: Final = dict.fromkeys(SCALES, 0.25)

Scores: TypeAlias = dict[str, list[float]]
Rule: TypeAlias = Callable[[Scores], Sequence[float]]
"""A group's scores → one reward a completion."""


@dataclass(frozen=True, slots=True)
class SimulatedGroup:
    """The true values of completions, and each judge's scores."""

    truth: list[float]
    scores: Scores


@dataclass(frozen=True, slots=True)
class Adversary:
    """`judges` of the four are not honest; `watched`: the completion that it is all about, of which `gain` says whether
    a reward above the mean is the adversary's success. Without one the correlation with the truth is what counts."""

    judges: int
    says: Callable[[list[float], list[float], random.Random], list[float]]
    """(truth, an honest judge's standard scores, draws) → what the judge says instead, before its scale."""
    watched: str = ""
    """bad, best, or nothing."""


def _honest(truth: list[float], honest: list[float], rng: random.Random) -> list[float]:
    return honest


def _fooled(truth: list[float], honest: list[float], rng: random.Random) -> list[float]:
    return [TAKEN_FOR + honest[0] - truth[0], *honest[1:]]


def _hostile(truth: list[float], honest: list[float], rng: random.Random) -> list[float]:
    best = truth.index(max(truth))
    return [*honest[:best], honest[best] - truth[best] - TAKEN_FOR, *honest[best + 1 :]]


def _inverted(truth: list[float], honest: list[float], rng: random.Random) -> list[float]:
    return [-score for score in honest]


def _flat(truth: list[float], honest: list[float], rng: random.Random) -> list[float]:
    return [0.0] * len(honest)


def _random(truth: list[float], honest: list[float], rng: random.Random) -> list[float]:
    return [rng.gauss(0, 1) for _ in honest]


ADVERSARIES: Final[Mapping[str, Adversary]] = {
    "none": Adversary(0, _honest),
    "one_fooled": Adversary(1, _fooled, "bad"),
    "two_fooled": Adversary(2, _fooled, "bad"),
    "all_fooled": Adversary(4, _fooled, "bad"),
    "hostile": Adversary(1, _hostile, "best"),
    "inverted": Adversary(1, _inverted),
    "flat": Adversary(1, _flat),
    "random": Adversary(1, _random),
    "colluding": Adversary(2, _random),
}
"""By name. `colluding`: two judges that draw one opinion together and both give it."""


def groups(name: str, count: int, seed: int, *, same: bool) -> Iterator[SimulatedGroup]:
    """Yield groups. `same`: the adversary's judges are the same in all groups."""
    adversary, rng = ADVERSARIES[name], random.Random(f"judges {name} {seed}")
    colluding = rng.sample(list(SCALES), adversary.judges)
    for _ in range(count):
        truth = [rng.gauss(0, 1) for _ in range(SIZE)]
        if adversary.watched == "bad":
            truth[0] = BAD
        colluding = colluding if same else rng.sample(list(SCALES), adversary.judges)
        judge_scores = {judge: [worth + rng.gauss(0, NOISE) for worth in truth] for judge in SCALES}
        if name == "colluding":
            together = adversary.says(truth, truth, rng)
            judge_scores |= dict.fromkeys(colluding, together)
        else:
            judge_scores |= {judge: adversary.says(truth, judge_scores[judge], rng) for judge in colluding}
        yield SimulatedGroup(
            truth, {judge: [SCALES[judge] * score for score in judge_scores[judge]] for judge in SCALES}
        )


@dataclass(frozen=True, slots=True)
class RuleResult:
    """`correlation` of the rewards with the truth, mean over groups; `share` of groups in which the bad completion is
    rewarded above the mean, or the best one below it, or NaN."""

    correlation: float
    share: float


def play(rule: Rule, name: str, count: int, seed: int, *, same: bool = False, skip: int = 0) -> RuleResult:
    """Measure a rule against an adversary. The first `skip` groups are not counted."""
    watched = ADVERSARIES[name].watched
    correlations, lost = [], 0
    for n, group in enumerate(groups(name, count + skip, seed, same=same)):
        rewards = standardise(rule(group.scores))
        if n < skip:
            continue
        pairs = zip(rewards, standardise(group.truth), strict=True)
        correlations.append(math.fsum(reward * worth for reward, worth in pairs) / SIZE)
        best = group.truth.index(max(group.truth))
        lost += rewards[0] > 0 if watched == "bad" else rewards[best] < 0
    return RuleResult(math.fsum(correlations) / count, lost / count if watched else math.nan)


def raw_mean(scores: Scores) -> list[float]:
    """The mean of the unchanged scores, as most committees use it."""
    return [math.fsum(values) / len(values) for values in zip(*scores.values(), strict=True)]


def by_rule(rule: str, caution: float = 0.5, reliability: Reliability | None = None) -> Rule:
    """Return one of the committee's rules. With `reliability` it learns about the judges from group to group."""

    def rewards(scores: Scores) -> list[float]:
        weights = WEIGHTS if reliability is None else reliability.weights(WEIGHTS)
        made = aggregate(scores, weights, quorum=1, rule=rule, caution=caution)
        assert made is not None  # there are judges, so there is a reward
        if reliability is not None:
            reliability.add_group(scores, WEIGHTS)
        return made

    return rewards
