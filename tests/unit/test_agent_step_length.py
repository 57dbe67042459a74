"""The rate's agent and the length of the optimizer's steps: a far too high rate is undone before the loss shows it."""

from __future__ import annotations

import pytest
from tests.unit import runs

from oven_agents.learning_rate import LearningRate
from oven_agents.step_length import FITTING, LONGEST
from oven_controller.messages import Observation, RunStarted, Vote

WARMUP = 20


def observations(length: float, growth: float = 0.0, ticks: int = 40, cosine: float = 0.0) -> list[Observation]:
    """Of a run whose steps are `length` long, relative to the weights, from the end of the warm-up on; by then the
    weights have grown by `growth` of their norm a tick."""
    gauges = runs.language()

    def longer(tick: int) -> dict[str, float]:
        found = runs.observed(gauges, [tick])[0].metrics
        grown = 1 + growth * tick
        ratio = length * min(1.0, tick / WARMUP) / grown
        rate = found["learning_rate"] * length / FITTING
        gauged = {"learning_rate": rate, "optim/update_ratio": ratio, "optim/weight_norm": 28 * grown}
        return {**found, **gauged} | ({"optim/grad_momentum_cos": cosine} if cosine else {})

    return [runs.seen(tick, longer(tick)) for tick in range(1, ticks)]


def said(seen: list[Observation], run: RunStarted | None = None) -> list[Vote]:
    return runs.votes(LearningRate(), run or runs.pretraining(), seen)


def test_steps_that_are_far_too_long_are_undone_once_the_rate_stands() -> None:
    cut, back = said(observations(8 * FITTING))[:2]
    assert cut.actuator == "optimizer.lr_scale" and cut.value == pytest.approx(8 ** (-4 / 3))
    # The first that was too long came in the warm-up; what it did is not kept either.
    assert (back.actuator, back.value) == ("run.rollback", 4.0)
    assert WARMUP < cut.tick == back.tick <= WARMUP + 3
    assert "10.4% of their norm (1.3% at a fitting rate); back to tick 4" in cut.rationale


def test_weights_that_grow_under_it_hide_nothing_of_it() -> None:
    """They have doubled by then, and by its relative length a step is half as long as it was."""
    cut = said(observations(8 * FITTING, growth=0.05))[0]
    by_the_last = (8 / (1 + 0.05 * cut.tick)) ** (-4 / 3)
    assert isinstance(cut.value, float) and 8 ** (-4 / 3) < cut.value < 0.7 * by_the_last


@pytest.mark.parametrize("length", [FITTING / 3, FITTING, 0.95 * LONGEST])
def test_steps_of_a_length_that_fits_are_left_alone(length: float) -> None:
    assert not said(observations(length))


def test_neither_while_the_rate_still_rises_nor_under_a_reward_nor_where_nothing_can_be_undone() -> None:
    long = observations(8 * FITTING)
    assert not said(long[: WARMUP - 1])
    rewarded = [runs.seen(one.tick, {**one.metrics, "reward": 0.5}) for one in long]
    assert not said(rewarded, runs.grpo())
    run = runs.pretraining()
    knobs = tuple(spec for spec in run.actuators if spec.name != "run.rollback")
    assert not said(long, run.model_copy(update={"actuators": knobs}))


def test_a_rate_is_raised_no_further_than_until_its_steps_fit() -> None:
    def raised(length: float) -> list[object]:
        return [vote.value for vote in said(observations(length, cosine=0.8))]

    assert raised(FITTING / 30)[0] == 4.0
    assert raised(FITTING / 2)[0] == pytest.approx(2.0)
    assert not raised(FITTING), "agreement alone is no reason where steps are as long as they should be"


def test_steps_that_grew_at_the_same_rate_are_not_the_rates() -> None:
    """Second moments that were lost, say: for a while Adam's steps are long, whatever the rate."""
    fitting = observations(FITTING)
    grown = [
        runs.seen(one.tick, {**one.metrics, "optim/update_ratio": 8 * FITTING}) if one.tick > 30 else one
        for one in fitting
    ]
    assert not said(grown)


def test_gradients_that_agree_all_at_once_are_no_reason_to_raise_the_rate() -> None:
    """Stale ones do, for they are the mean of those before; a rate that fell explains it."""

    def agreeing(rate: float) -> list[Observation]:
        return [
            runs.seen(one.tick, {**one.metrics, "optim/grad_momentum_cos": 0.8, "learning_rate": rate})
            if one.tick > 60
            else runs.seen(one.tick, {**one.metrics, "learning_rate": 3e-3})
            for one in observations(FITTING / 3, ticks=80)
        ]

    assert not [vote for vote in said(agreeing(3e-3)) if vote.actuator == "optimizer.lr_scale"]
    assert [vote.value for vote in said(agreeing(1e-4)) if vote.actuator == "optimizer.lr_scale"][:1] == [3.0]
