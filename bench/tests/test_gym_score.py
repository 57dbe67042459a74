"""Scores, intervals and verdicts from made-up rows: by example and by property."""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import partial
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from oven_bench.gym.command import report
from oven_bench.gym.score import (
    BEST_RULE,
    MARGIN,
    MAX_COST,
    MAX_WORSE,
    MIN_FAMILIES,
    ArmScore,
    HealthyCost,
    Row,
    arm_scores,
    best_rule,
    cost,
    healthy_costs,
    noise,
    oracle,
    score,
    verdict,
    worse,
)
from oven_bench.gym.task_table import TASKS


def arm_score(rows_of_arm: Sequence[Row]) -> ArmScore:
    [result] = arm_scores(rows_of_arm).values()
    return result


def healthy(rows_of_arm: Sequence[Row]) -> HealthyCost:
    [result] = healthy_costs(rows_of_arm).values()
    return result


def row(
    loss: float,
    *,
    family: str = "f",
    arm: str = "a",
    seed: int = 1,
    nothing: float = 3.0,
    twin: float = 2.0,
    healthy: bool = False,
    interventions: int = 0,
) -> Row:
    return Row(
        family=family, kind="pretraining", healthy=healthy, seed=seed, arm=arm, onset=110, loss=loss,
        nothing=nothing, twin=twin, steps=200, interventions=interventions, seconds=0.1,
    )  # fmt: skip


def rows(arm: str, scores: Sequence[float], **more: bool) -> list[Row]:
    """One episode of each family, with these scores: harm is 1."""
    return [row(3.0 - each, family=f"f{index:02}", arm=arm, **more) for index, each in enumerate(scores)]


def calm(arm: str, costs: Sequence[float], interventions: int = 0) -> list[Row]:
    return [
        row(2 * (1 + each), family=f"h{n}", arm=arm, nothing=2.0, healthy=True, interventions=interventions)
        for n, each in enumerate(costs)
    ]


def test_a_score_is_the_share_of_the_harm_that_was_undone() -> None:
    assert [score(row(loss)) for loss in (3.0, 2.0, 2.5)] == [0.0, 1.0, 0.5]
    assert score(row(1.5)) == 1.5, "not clipped above"
    assert score(row(3.25)) == -0.25, "nor at 0"
    assert score(row(30.0)) == -1.0, "floored at −1"


def test_where_the_fault_did_no_harm_only_the_cost_counts() -> None:
    harmless = partial(row, nothing=2.01, twin=2.0)
    assert score(harmless(1.0)) == 0.0, "there was nothing to undo"
    assert score(harmless(2.01 * 1.1)) == pytest.approx(-0.1)
    assert score(harmless(9.0)) == -1.0


finite = st.floats(0.05, 9)


@given(finite, finite, finite, finite)
def test_a_score_is_monotone_bounded_below_and_0_for_doing_nothing(
    a: float, b: float, nothing: float, twin: float
) -> None:
    better, worse_row = (row(loss, nothing=nothing, twin=twin) for loss in sorted((a, b)))
    assert score(better) >= score(worse_row) >= -1
    assert score(row(nothing, nothing=nothing, twin=twin)) == 0
    if better.nothing - better.twin > noise("pretraining", better.twin):
        assert score(row(twin, nothing=nothing, twin=twin)) == pytest.approx(1)


@given(finite, finite)
def test_worse_than_nothing_is_beyond_noise_and_never_a_positive_score(loss: float, nothing: float) -> None:
    episode = row(loss, nothing=nothing, twin=1.0)
    assert worse(episode) == (loss > nothing + noise("pretraining", nothing))
    assert not (worse(episode) and score(episode) > 0)


def test_a_solved_task_is_no_division_by_zero() -> None:
    solved = Row("f", "grpo", True, 1, "a", 110, 0.01, 0.0, 0.0, 200, 0, 0.1)
    assert cost(solved) == 0.01, "of all answers"
    assert not worse(solved)
    assert noise("grpo", 0.0) == noise("grpo", 0.9) == TASKS["grpo"].noise
    assert noise("pretraining", 2.0) == 2 * TASKS["pretraining"].noise


def test_seeds_of_one_family_do_not_narrow_the_interval() -> None:
    """Ten seeds of each of three families that differ: as uncertain as one seed of each."""
    few = [row(3 - value, family=str(value)) for value in (0.0, 0.5, 1.0)]
    many = [row(3 - value, family=str(value), seed=seed) for value in (0.0, 0.5, 1.0) for seed in range(10)]
    assert arm_score(few).score == arm_score(many).score
    assert arm_score(few).score.high - arm_score(few).score.low > 0.5


def test_a_healthy_run_is_scored_by_what_it_cost_and_how_often_it_was_touched() -> None:
    result = healthy(calm("a", [0.01, 0.03], interventions=1))
    assert result.harm.mean == pytest.approx(0.02)
    assert result.interventions_per_1000 == pytest.approx(5.0)
    assert healthy(calm("a", [-0.1])).harm.mean == pytest.approx(-0.1), "a gain does no harm"


def judged(subject: Sequence[float], *others: Sequence[float], costs: Sequence[float] = (0.0,)) -> str:
    baselines = {f"b{n}": arm_score(rows(f"b{n}", scores)) for n, scores in enumerate(others)}
    return verdict(arm_score(rows("s", subject)), baselines, healthy(calm("s", costs))).word


ZERO = [0.0] * 10


@pytest.mark.parametrize(
    ("word", "subject", "baselines", "costs"),
    [
        ("HELPS", [0.5, 0.6] * 5, [ZERO, [0.2, 0.3] * 5], [0.0]),
        ("NO EFFECT", [0.01, -0.01] * 5, [ZERO], [0.0]),
        ("HARMS", [0.2] * 10, [ZERO, [0.5, 0.6] * 5], [0.0]),
        ("HARMS", [0.9, -0.5] * 5, [ZERO], [0.0]),  # half of the episodes ends worse than with nothing done
        ("HARMS", [0.9] * 10, [ZERO], [0.05, 0.06, 0.07]),
        ("INCONCLUSIVE", [0.1 * n for n in range(10)], [[0.45] * 10], [0.0]),
    ],
)
def test_each_verdict(word: str, subject: list[float], baselines: list[list[float]], costs: list[float]) -> None:
    assert judged(subject, *baselines, costs=costs) == word


def test_inconclusive_when_it_helps_but_healthy_runs_were_not_measured() -> None:
    result = verdict(arm_score(rows("s", [0.9] * 10)), {"b": arm_score(rows("b", ZERO))}, None)
    assert result.word == "INCONCLUSIVE"
    assert "no healthy runs" in result.why


def test_inconclusive_with_few_families_or_without_the_subject() -> None:
    few = MIN_FAMILIES - 1
    assert judged([0.9] * few, [0.0] * few) == "INCONCLUSIVE"
    assert judged([0.9] * MIN_FAMILIES, [0.0] * MIN_FAMILIES) == "HELPS"
    assert verdict(None, {"b": arm_score(rows("b", ZERO))}, None).word == "INCONCLUSIVE"
    assert verdict(arm_score(rows("s", ZERO)), {}, None).word == "INCONCLUSIVE"


@given(
    st.lists(st.tuples(st.floats(-1, 1.5), st.floats(-1, 1.5), st.floats(-1, 1.5)), min_size=MIN_FAMILIES, max_size=12),
    st.lists(st.floats(-0.1, 0.1), min_size=1, max_size=4),
)
@settings(max_examples=60, deadline=None)
def test_a_verdict_says_no_more_than_its_interval(scores: list[tuple[float, ...]], costs: list[float]) -> None:
    mine, first, second = zip(*scores, strict=True)
    subject, calm_ = arm_score(rows("s", mine)), healthy(calm("s", costs))
    baselines = {"one": arm_score(rows("one", first)), "two": arm_score(rows("two", second))}
    result = verdict(subject, baselines, calm_)
    assert result.difference is not None
    assert result.difference.low <= result.difference.mean + 1e-9
    assert result.difference.mean == pytest.approx(subject.score.mean - max(b.score.mean for b in baselines.values()))
    if result.word == "HELPS":
        assert result.difference.low > 0
        assert subject.worse.mean <= MAX_WORSE
        assert calm_.harm.mean <= MAX_COST
    if result.word == "HARMS":
        assert result.difference.high < 0 or subject.worse.low > MAX_WORSE or calm_.harm.low > MAX_COST
    if result.word == "NO EFFECT":
        assert -MARGIN < result.difference.low <= result.difference.high < MARGIN
    twins = {**baselines, "self": subject}
    assert verdict(subject, twins, calm_).word != "HELPS", "no one beats himself"


def test_the_best_rule_is_chosen_by_other_families_than_it_is_judged_on() -> None:
    """Rule x is best by far on f00 alone; y everywhere else. On f00 it must be y, whose choice f00 had no part in."""
    made = rows("rule.x", [1.0, 0.1, 0.1]) + rows("rule.y", [0.0, 0.3, 0.3])
    assert {r.family: round(score(r), 3) for r in best_rule(made)} == {"f00": 0.0, "f01": 0.1, "f02": 0.1}
    assert {r.arm for r in best_rule(made)} == {BEST_RULE}


def test_the_oracle_takes_the_best_of_each_episode_nothing_included() -> None:
    made = (
        rows("rule.x", [0.5, -0.2]) + rows("rule.y", [0.1, -0.4]) + rows("nothing", [0.0, 0.0]) + rows("m", [0.9] * 2)
    )
    assert [score(r) for r in oracle(made)] == [0.5, 0.0]


def example_rows() -> list[Row]:
    made = rows("nothing", ZERO) + rows("mesh+kg", [0.6] * 10) + rows("rule.x", [0.2] * 10)
    return made + calm("nothing", [0.0, 0.0]) + calm("mesh+kg", [0.0, 0.01], 1) + calm("rule.x", [0.1, 0.1], 2)


def test_the_contract_of_json() -> None:
    result: dict[str, Any] = dict(report(example_rows(), "mesh+kg").figures)
    assert result["verdict"] == "HELPS"
    assert result["best_baseline"] == "best_rule"
    assert {"mean", "low", "high", "worse_than_nothing", "episodes", "families"} <= set(result["arms"]["mesh+kg"])
    assert result["healthy"] == {"harm": 0.005, "low": 0.0, "high": 0.01, "interventions_per_1000": 5.0}
    assert set(result["arms"]) == {"nothing", "mesh+kg", "rule.x", "best_rule", "oracle"}
    json.dumps(result, allow_nan=False)
