"""The committee's arithmetic: what it promises, by property, and what it is for, by simulation."""

from __future__ import annotations

import itertools
import math
import random
from collections.abc import Callable
from statistics import fmean

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from oven_learner.rewards.aggregate import _cautious, _penalised, aggregate, agreement, sees_difference, standard
from oven_learner.rewards.scores import Abstention, checked

EQUAL = dict.fromkeys("abcd", 0.25)
score = st.integers(0, 100).map(lambda percent: percent / 100)


@st.composite
def group(draw: st.DrawFn, least: int = 1) -> dict[str, list[float]]:
    size = draw(st.integers(2, 8))
    members = "abcd"[: draw(st.integers(least, 4))]
    return {name: draw(st.lists(score, min_size=size, max_size=size)) for name in members}


def advantages(rewards: list[float]) -> list[float]:
    """TRL's, scaled by the group."""
    mean = fmean(rewards)
    spread = math.sqrt(fmean((reward - mean) ** 2 for reward in rewards))
    return [standard(reward, mean, spread) for reward in rewards]


@given(group(), st.randoms(use_true_random=False))
def test_reordered_completions_and_members_change_nothing_else(
    scores: dict[str, list[float]], rng: random.Random
) -> None:
    order = list(range(len(scores["a"])))
    rng.shuffle(order)
    names = list(scores)
    rng.shuffle(names)
    plain = aggregate(scores, EQUAL, caution=0.5, quorum=1)
    moved = aggregate({name: [scores[name][i] for i in order] for name in names}, EQUAL, caution=0.5, quorum=1)
    assert plain is not None and moved == [plain[i] for i in order]


@given(group(least=2), st.sampled_from((0.25, 0.5, 2.0, 4.0)), st.floats(-1, 1))
def test_a_judges_own_scale_and_offset_do_not_move_the_order(
    scores: dict[str, list[float]], factor: float, offset: float
) -> None:
    other = scores | {"a": [factor * value + offset for value in scores["a"]]}
    one, two = (aggregate(given, EQUAL, caution=0.5, quorum=1) for given in (scores, other))
    assert one is not None and two is not None
    # What the other judges' spread carries over is the same up to its own factor.
    assert advantages(two) == pytest.approx(advantages(one), abs=1e-6) or max(map(abs, one)) < 1e-9


@given(group())
def test_one_voting_member_passes_through_bit_for_bit(scores: dict[str, list[float]]) -> None:
    weights = {"a": 1.0, "b": 0.0, "c": 0.0, "d": 0.0}
    assert aggregate(scores, weights, caution=0.5, quorum=1) == scores["a"]


@given(group(least=2), st.lists(score, min_size=8, max_size=8))
def test_a_member_without_weight_does_not_count(scores: dict[str, list[float]], said: list[float]) -> None:
    weights = EQUAL | {"e": 0.0}
    with_it = aggregate(scores | {"e": said[: len(scores["a"])]}, weights, caution=0.5, quorum=2)
    assert with_it == aggregate(scores, weights, caution=0.5, quorum=2)


@given(group(), st.integers(1, 5))
def test_without_a_quorum_there_is_no_number(scores: dict[str, list[float]], quorum: int) -> None:
    rewards = aggregate(scores, EQUAL, caution=0.5, quorum=quorum)
    seeing = sum(map(sees_difference, scores.values()))
    alone = len(scores) == 1
    assert (rewards is None) == (len(scores) < quorum or (0 < seeing < quorum and not alone))


@given(group(least=2), st.integers(1, 2), score)
def test_a_judge_that_sees_no_difference_has_no_part_in_the_order(
    scores: dict[str, list[float]], quorum: int, flat: float
) -> None:
    with_it = aggregate(scores | {"e": [flat] * len(scores["a"])}, EQUAL | {"e": 0.25}, caution=0.5, quorum=quorum)
    without = aggregate(scores, EQUAL, caution=0.5, quorum=quorum)
    assert (with_it is None) == (without is None), "nor in the quorum"
    if with_it is not None and without is not None:
        # Its mean is part of the level, and its spread of 0 of the scale.
        size = len(scores) / (len(scores) + 1)
        off = [size * (reward - fmean(without)) for reward in without]
        assert [reward - fmean(with_it) for reward in with_it] == pytest.approx(off, abs=1e-9)


def test_a_quorum_of_two_needs_two_that_see_a_difference_unless_none_does() -> None:
    seeing, flat = [0.1, 0.9], [0.5, 0.5]
    assert aggregate({"a": seeing, "b": flat}, EQUAL, caution=0.5, quorum=2) is None
    assert aggregate({"a": seeing, "b": seeing, "c": flat}, EQUAL, caution=0.5, quorum=2) is not None
    assert aggregate({"a": [0.25] * 2, "b": [0.75] * 2}, EQUAL, caution=0.5, quorum=2) == [0.5, 0.5]


@given(
    group(least=2), st.lists(st.floats(0.01, 1), min_size=4, max_size=4), st.floats(0, 4), st.lists(score, min_size=4)
)
def test_what_no_judge_puts_below_another_completion_has_no_lower_reward(
    scores: dict[str, list[float]], weights: list[float], caution: float, lead: list[float]
) -> None:
    """The second completion is the first one with a lead, of another size with each judge."""
    for (name, said), more in zip(scores.items(), lead, strict=False):
        scores[name] = [said[0], min(1.0, said[0] + more), *said[2:]]
    rewards = aggregate(scores, dict(zip("abcd", weights, strict=True)), caution=caution, quorum=1)
    assert rewards is not None and rewards[1] >= rewards[0] - 1e-9


def test_the_best_completion_by_every_judge_is_the_best_under_the_greatest_caution() -> None:
    """By the plain mean − 2 · deviation the second one won, 1.026 to 1.008: the judges differ in how much better the
    best is."""
    scores = {"a": [1.0, 0.7, 0.3, 0.2], "b": [1.0, 0.9, 0.9, 0.0]}
    rewards = aggregate(scores, EQUAL, caution=2.0, quorum=2)
    assert rewards is not None and rewards[0] == max(rewards) and rewards[0] > rewards[1]


@given(group(least=2), st.floats(0, 4))
def test_the_reward_is_the_plain_formulas_or_that_of_less_praise(
    scores: dict[str, list[float]], caution: float
) -> None:
    """By search: no other set of caps on the judges' standard scores does better than one cap for all."""
    seeing = [said for said in scores.values() if sees_difference(said)]
    if not seeing:
        return
    share = 1 / len(seeing)
    z = [(advantages(said)[0], share) for said in seeing]
    found = _cautious(z, caution)
    assert found >= _penalised(z, caution)
    steps = [k / 4 for k in range(9)]
    for lowered in itertools.product(steps, repeat=len(z)):
        assert _penalised([(x - by, w) for (x, w), by in zip(z, lowered, strict=True)], caution) <= found + 1e-9


@given(group(least=2), st.floats(0, 2))
def test_the_groups_mean_is_the_members(scores: dict[str, list[float]], caution: float) -> None:
    rewards = aggregate(scores, EQUAL, caution=caution, quorum=1)
    assert rewards is not None and all(map(math.isfinite, rewards))
    assert fmean(rewards) == pytest.approx(fmean(fmean(given) for given in scores.values()), abs=1e-9)


@given(st.lists(score, min_size=2, max_size=8))
def test_members_of_one_mind_give_what_each_gives(said: list[float]) -> None:
    assert aggregate(dict.fromkeys("abc", said), EQUAL, caution=0.5, quorum=2) == pytest.approx(said, abs=1e-9)


@given(st.lists(score, min_size=3, max_size=8), st.lists(score, min_size=8, max_size=8))
def test_one_of_four_lifts_a_completion_by_a_thirtieth_of_its_opinion(honest: list[float], said: list[float]) -> None:
    """R of each completion: three judges agree on z = a, the fourth says f. In closed form the fourth's share is
    w − λ√(w(1−w)) = 0.0335 upwards and 0.4665 downwards."""
    fooled = said[: len(honest)]
    assume(sees_difference(honest) and sees_difference(fooled))
    scores = {"a": honest, "b": honest, "c": honest, "d": fooled}
    rewards = aggregate(scores, EQUAL, caution=0.5, quorum=2)
    a, f = advantages(honest), advantages(fooled)
    up, down = 0.25 - 0.5 * math.sqrt(0.1875), 0.25 + 0.5 * math.sqrt(0.1875)
    shares = [up if theirs > ours else down for ours, theirs in zip(a, f, strict=True)]
    expected = [(1 - w) * x + w * y for w, x, y in zip(shares, a, f, strict=True)]
    assert rewards is not None and up == pytest.approx(0.0335, abs=1e-4)
    assert advantages(rewards) == pytest.approx(advantages(expected), abs=1e-4)
    for i in range(len(honest)):
        for j in range(len(honest)):
            # The order of two is turned upwards only where they were closer than the margin, and j not pushed down.
            if f[i] > a[i] and f[j] >= a[j] and a[j] - a[i] > up / (1 - up) * (f[i] - f[j]) + 1e-6:
                assert rewards[j] > rewards[i]


def simulated(
    rule: Callable[[dict[str, list[float]]], list[float]], fooled: int, groups: int = 500
) -> tuple[float, float]:
    """(correlation with the truth in clean groups, share of groups in which the bad completion gains) for four judges
    of scales .5, .8, 1.2, 2, noise .7 σ, groups of eight; one is truly at −1.5 σ, and at 4 σ to `fooled`."""
    rng = random.Random(f"judges {fooled}")
    correlations, gained = [], 0
    for _ in range(groups):
        truth = [rng.gauss(0, 1) for _ in range(8)]
        noise = [[rng.gauss(0, 0.7) for _ in range(8)] for _ in range(4)]
        order = rng.sample(range(4), 4)  # which judges are fooled is not a matter of scale

        def judges(truth: list[float], noise: list[list[float]] = noise) -> dict[str, list[float]]:
            scales = (0.5, 0.8, 1.2, 2.0)
            return {
                name: [scale * (t + e) for t, e in zip(truth, noise[k], strict=True)]
                for k, (name, scale) in enumerate(zip("abcd", scales, strict=True))
            }

        clean = advantages(rule(judges(truth)))
        correlations.append(fmean(x * y for x, y in zip(clean, advantages(truth), strict=True)))
        scores = judges([-1.5, *truth[1:]])
        for k in order[:fooled]:
            scores["abcd"[k]][0] = (0.5, 0.8, 1.2, 2.0)[k] * (4 + noise[k][0])
        gained += advantages(rule(scores))[0] > 0
    return fmean(correlations), gained / groups


def raw(scores: dict[str, list[float]]) -> list[float]:
    return [fmean(given) for given in zip(*scores.values(), strict=True)]


def cautious(caution: float) -> Callable[[dict[str, list[float]]], list[float]]:
    def rule(scores: dict[str, list[float]]) -> list[float]:
        rewards = aggregate(scores, EQUAL, caution=caution, quorum=2)
        assert rewards is not None
        return rewards

    return rule


def test_a_fooled_judge_gains_a_bad_completion_little_and_caution_less() -> None:
    found = {
        (name, fooled): simulated(rule, fooled)
        for name, rule in {"raw": raw, "mean": cautious(0.0), "cautious": cautious(0.5)}.items()
        for fooled in (1, 2, 4)
    }
    gained = {key: share for key, (_, share) in found.items()}
    assert gained["raw", 1] > 0.3 > 0.25 > gained["mean", 1] > 0.08 > gained["cautious", 1]
    assert gained["raw", 2] > 0.8 and gained["mean", 2] > 0.8 and gained["cautious", 2] < 0.5
    assert min(gained[name, 4] for name in ("raw", "mean", "cautious")) > 0.99, "no rule helps when all are fooled"
    correlation = {name: found[name, 1][0] for name in ("raw", "mean", "cautious")}
    assert correlation["cautious"] > correlation["raw"] - 0.01 > 0.85, "and it costs nothing in clean groups"


def test_agreement() -> None:
    assert agreement({"a": [0, 1], "b": [0.2, 0.6]}) == pytest.approx(1)
    assert agreement({"a": [0, 1], "b": [1, 0]}) == pytest.approx(-1)
    assert agreement({"a": [0, 1], "b": [0.5, 0.5]}) is None, "who sees no difference agrees with nobody"
    assert agreement({"a": [0, 1]}) is None


@given(st.lists(st.one_of(st.floats(), st.none(), st.booleans(), st.just("0.5"), st.integers()), max_size=4))
def test_only_finite_numbers_in_0_to_1_are_scores(values: list[object]) -> None:
    verdict = checked(values)
    fine = all(isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v <= 1 for v in values)
    assert fine != isinstance(verdict, Abstention)
