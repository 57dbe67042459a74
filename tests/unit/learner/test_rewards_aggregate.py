"""The committee's arithmetic: what it promises, by property, and what it is for, by simulation."""

from __future__ import annotations

import itertools
import json
import math
import random
from statistics import fmean

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support.simulated_judges import by_rule, play, raw_mean

from oven_learner.rewards.aggregation import (
    DEFAULT_RULE,
    RULES,
    aggregate,
    cautious,
    penalised_mean,
    sees_difference,
    standard_score,
)
from oven_learner.rewards.reliability import FLOOR, Reliability
from oven_learner.rewards.verdicts import Abstention, to_verdict

EQUAL = dict.fromkeys("abcd", 0.25)
rules = st.sampled_from(sorted(RULES))
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
    return [standard_score(reward, mean, spread) for reward in rewards]


@given(group(), rules, st.randoms(use_true_random=False))
def test_reordered_completions_and_members_change_nothing_else(
    scores: dict[str, list[float]], rule: str, rng: random.Random
) -> None:
    order = list(range(len(scores["a"])))
    rng.shuffle(order)
    names = list(scores)
    rng.shuffle(names)
    plain = aggregate(scores, EQUAL, rule=rule, quorum=1)
    moved = aggregate({name: [scores[name][i] for i in order] for name in names}, EQUAL, rule=rule, quorum=1)
    assert plain is not None and moved == [plain[i] for i in order]


@given(group(least=2), rules, st.sampled_from((0.25, 0.5, 2.0, 4.0)), st.floats(-1, 1))
def test_a_judges_scale_and_offset_do_not_change_the_order(
    scores: dict[str, list[float]], rule: str, factor: float, offset: float
) -> None:
    rescaled = scores | {"a": [factor * value + offset for value in scores["a"]]}
    first, two = (aggregate(group_scores, EQUAL, rule=rule, quorum=1) for group_scores in (scores, rescaled))
    assert first is not None and two is not None
    # What the other judges' spread carries over is the same up to its own factor.
    assert advantages(two) == pytest.approx(advantages(first), abs=1e-6) or max(map(abs, first)) < 1e-9


@given(group(), rules)
def test_one_voting_member_passes_through_bit_for_bit(scores: dict[str, list[float]], rule: str) -> None:
    weights = {"a": 1.0, "b": 0.0, "c": 0.0, "d": 0.0}
    assert aggregate(scores, weights, rule=rule, quorum=1) == scores["a"]


@given(group(), st.integers(1, 5))
def test_without_a_quorum_there_is_no_number(scores: dict[str, list[float]], quorum: int) -> None:
    rewards = aggregate(scores, EQUAL, caution=0.5, quorum=quorum)
    seeing = sum(map(sees_difference, scores.values()))
    alone = len(scores) == 1
    assert (rewards is None) == (len(scores) < quorum or (0 < seeing < quorum and not alone))


@given(group(least=2), st.integers(1, 2), score)
def test_a_judge_with_equal_scores_does_not_affect_the_order(
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
    group(least=2),
    rules,
    st.lists(st.floats(0.01, 1), min_size=4, max_size=4),
    st.floats(0, 4),
    st.lists(score, min_size=4),
)
def test_rewards_are_monotone_in_every_judges_score(
    scores: dict[str, list[float]], rule: str, weights: list[float], caution: float, lead: list[float]
) -> None:
    """The second completion is the first one with a lead, of another size with each judge."""
    for (name, values), more in zip(scores.items(), lead, strict=False):
        scores[name] = [values[0], min(1.0, values[0] + more), *values[2:]]
    rewards = aggregate(scores, dict(zip("abcd", weights, strict=True)), rule=rule, caution=caution, quorum=1)
    assert rewards is not None and rewards[1] >= rewards[0] - 1e-9


@given(group(least=2), st.floats(0, 4))
def test_the_reward_is_the_formulas_result_or_that_of_lower_scores(
    scores: dict[str, list[float]], caution: float
) -> None:
    """By search: no other set of caps on the judges' standard_score scores does better than one cap for all."""
    seeing = [values for values in scores.values() if sees_difference(values)]
    if not seeing:
        return
    share = 1 / len(seeing)
    z = [(advantages(values)[0], share) for values in seeing]
    value = cautious(z, caution)
    assert value >= penalised_mean(z, caution)
    steps = [k / 4 for k in range(9)]
    for lowered in itertools.product(steps, repeat=len(z)):
        assert penalised_mean([(x - by, w) for (x, w), by in zip(z, lowered, strict=True)], caution) <= value + 1e-9


def test_the_default_rule_holds_against_two_fooled_judges_and_against_a_hostile_one() -> None:
    rule = by_rule(DEFAULT_RULE)
    assert play(rule, "none", 300, seed=5).correlation >= 0.90
    assert play(rule, "one_fooled", 300, seed=5).share <= 0.05
    assert play(rule, "two_fooled", 600, seed=5).share <= 0.20
    assert play(rule, "hostile", 300, seed=5).share <= 0.10


def test_other_rules_fail_and_no_rule_helps_when_all_judges_are_fooled() -> None:
    assert play(raw_mean, "one_fooled", 300, seed=6).share > 0.3
    assert play(by_rule("cautious"), "hostile", 300, seed=6).share > 0.4
    assert all(play(by_rule(rule), "all_fooled", 100, seed=6).share > 0.98 for rule in RULES)


@pytest.mark.parametrize("adversary", ["hostile", "inverted", "random"])
def test_reliability_finds_the_judge_that_is_not_to_be_believed(adversary: str) -> None:
    plain, reliability = by_rule(DEFAULT_RULE), Reliability("abcd")
    without = play(plain, adversary, 150, seed=7, same=True, skip=50)
    learnt = play(by_rule(DEFAULT_RULE, reliability=reliability), adversary, 150, seed=7, same=True, skip=50)
    least, *others = sorted(reliability.values().values())
    assert least < 0.4 and min(others) == 1.0
    assert learnt.correlation > without.correlation


def test_reliability_is_not_learnt_of_two_that_disagree_nor_of_rules() -> None:
    reliability = Reliability("ab")
    for _ in range(50):
        reliability.add_group({"a": [0.0, 0.5, 1.0], "b": [1.0, 0.5, 0.0]}, EQUAL)
        reliability.add_group({"a": [0.5] * 3, "b": [1.0, 0.5, 0.0], "c": [0.0, 0.5, 1.0]}, EQUAL)
    assert reliability.values() == {"a": 1.0, "b": 1.0}
    for _ in range(50):
        reliability.add_group(
            {"a": [0.0, 0.5, 1.0], "b": [1.0, 0.5, 0.0], "rule": [0.0, 0.4, 1.0]}, EQUAL | {"rule": 0.25}
        )
    assert reliability.values() == {"a": 1.0, "b": FLOOR}
    assert reliability.weights(EQUAL) == EQUAL | {"b": 0.25 * FLOOR}, "what is not judged keeps its weight"


def test_reliability_falls_with_failed_controls_comes_back_and_outlives_a_resume() -> None:
    reliability, agreed = Reliability("abc"), {"a": [0.0, 1.0], "b": [0.1, 0.8], "c": [0.0, 0.9]}
    for _ in range(20):
        reliability.record_failed_control("c")
    assert reliability.values()["c"] == FLOOR
    resumed = Reliability("abcd")
    resumed.load_state_dict(json.loads(json.dumps(reliability.state_dict())))
    assert resumed.values() == reliability.values() | {"d": 1.0}
    for _ in range(300):
        resumed.add_group(agreed, EQUAL)
    assert resumed.values()["c"] == 1.0
    resumed.reset("a")
    resumed.reset("e")
    assert resumed.state_dict()["a"] == resumed.state_dict()["e"] == [0.0, 0.0]
    resumed.leave("e")
    assert "e" not in resumed.values()


@given(st.lists(st.one_of(st.floats(), st.none(), st.booleans(), st.just("0.5"), st.integers()), max_size=4))
def test_only_finite_numbers_in_0_to_1_are_scores(values: list[object]) -> None:
    verdict = to_verdict(values)
    fine = all(isinstance(v, int | float) and not isinstance(v, bool) and 0 <= v <= 1 for v in values)
    assert fine != isinstance(verdict, Abstention)


@given(st.lists(score, min_size=2, max_size=8), rules)
def test_members_that_agree_give_their_common_score(values: list[float], rule: str) -> None:
    assert aggregate(dict.fromkeys("abc", values), EQUAL, rule=rule, quorum=2) == pytest.approx(values, abs=1e-9)


@given(group(least=2), rules)
def test_the_mean_of_a_group_is_that_of_its_members(scores: dict[str, list[float]], rule: str) -> None:
    rewards = aggregate(scores, EQUAL, rule=rule, quorum=1)
    assert rewards is not None and all(map(math.isfinite, rewards))
    assert fmean(rewards) == pytest.approx(fmean(fmean(values) for values in scores.values()), abs=1e-9)


def test_the_lower_quantile_of_four_scores() -> None:
    z = [(score, 0.25) for score in (3.0, -2.0, 1.0, 0.0)]
    assert RULES["lower_quantile"](z, 0.5) == pytest.approx((0.4 - 0.4 + 0.4 + 0) / 4), "around the second-lowest, 0"
    assert RULES["lower_quantile"]([(-9.0, 0.03), (1.0, 0.3), (1.2, 0.3), (1.4, 0.37)], 0.5) > 0.9, "weight counts"
