"""The rate's agent and the length of the optimizer's steps: a far too high rate is undone before the loss shows it."""

from __future__ import annotations

import pytest
from tests.support import runs

from oven_agents.shipped.learning_rate import LearningRate
from oven_agents.stats.update_to_weight_ratio import MAX_LENGTH, TUNED_LENGTH
from oven_core.protocol.messages import Horizon, Observation, RunStarted, Vote

WARMUP = 20


def observations(
    length: float, growth: float = 0.0, ticks: int = 40, cosine: float = 0.0, worse: bool = False
) -> list[Observation]:
    """Of a run whose steps are `length` long, relative to the weights, from the end of the warm-up on; by then the
    weights have grown by `growth` of their norm a tick. `worse`: from tick 15 on its loss rises to where it began."""
    gauges = runs.language()

    def longer(tick: int) -> dict[str, float]:
        metrics = runs.observed(gauges, [tick])[0].metrics
        grown = 1 + growth * tick
        ratio = length * min(1.0, tick / WARMUP) / grown
        rate = metrics["learning_rate"] * length / TUNED_LENGTH
        gauged = {"learning_rate": rate, "optim/update_ratio": ratio, "optim/weight_norm": 28 * grown}
        loss = {"loss": 6 - 0.1 * tick if tick < 15 else min(6.0, 4.6 + 0.3 * (tick - 14))} if worse else {}
        return {**metrics, **gauged, **loss} | ({"optim/grad_momentum_cos": cosine} if cosine else {})

    return [runs.seen(tick, longer(tick)) for tick in range(1, ticks)]


def votes_of(seen: list[Observation], run: RunStarted | None = None) -> list[Vote]:
    return runs.votes(LearningRate(), run or runs.pretraining(), seen)


def test_steps_that_are_far_too_long_are_undone_once_the_rate_stands() -> None:
    cut, back = votes_of(observations(8 * TUNED_LENGTH, worse=True))[:2]
    assert cut.actuator == "optimizer.lr_scale" and cut.value == pytest.approx(8 ** (-4 / 3))
    # The first that was too long came in the warm-up; what it did is not kept either.
    assert (back.actuator, back.value) == ("run.rollback", 4.0)
    assert WARMUP < cut.tick == back.tick <= 18 + LearningRate.LOSS_TICKS, (
        "a third of what it gained was gone by tick 18"
    )
    assert "10.4% of their norm: roll back to tick 4" in cut.rationale and "loss fell from 5.8 to 4.7" in cut.rationale
    assert cut.plan == back.plan == ("optimizer.lr_scale", "run.rollback")


def test_a_loss_that_comes_back_by_itself_is_left_alone() -> None:
    """The first steps without a warm-up, or under an optimizer that has to get its bearings."""
    seen = [
        runs.seen(o.tick, {**o.metrics, "loss": 6 - 0.01 * o.tick + max(0.0, 4 - 0.2 * abs(o.tick - 12))})
        for o in observations(8 * TUNED_LENGTH)
    ]
    assert not votes_of(seen)


@pytest.mark.parametrize("length", [TUNED_LENGTH / 3, TUNED_LENGTH, 0.95 * MAX_LENGTH])
def test_steps_of_a_length_that_fits_are_left_alone(length: float) -> None:
    assert not votes_of(observations(length))


def test_no_rate_change_during_warm_up_under_a_reward_or_without_rollback() -> None:
    long = observations(8 * TUNED_LENGTH, worse=True)
    assert not votes_of(long[: WARMUP - 1])
    rewarded = [runs.seen(observation.tick, {**observation.metrics, "reward": 0.5}) for observation in long]
    assert not votes_of(rewarded, runs.grpo())
    run = runs.pretraining()
    knobs = tuple(spec for spec in run.actuators if spec.name != "run.rollback")
    assert not votes_of(long, run.model_copy(update={"actuators": knobs}))


def test_no_rate_is_raised_early_in_training_from_random_weights() -> None:
    """For forty steps, and for a twentieth of the run: 50 of a thousand, 5 of a hundred."""
    run = runs.pretraining()
    seen = observations(TUNED_LENGTH / 30, cosine=0.8, ticks=60)
    assert votes_of(seen)[0].tick == round(LearningRate.INITIAL_PROGRESS * 1000)
    soon = [observation.model_copy(update={"progress": observation.tick / 100}) for observation in seen]
    unknown = run.model_copy(update={"horizon": Horizon()})
    assert votes_of(soon)[0].tick == votes_of(seen, unknown)[0].tick == LearningRate.INITIAL_TICKS


def test_steps_that_grew_at_the_same_rate_are_not_the_rates() -> None:
    """Second moments that were lost, say: for a while Adam's steps are long, whatever the rate."""
    fitting = observations(TUNED_LENGTH)
    grown = [
        runs.seen(observation.tick, {**observation.metrics, "optim/update_ratio": 8 * TUNED_LENGTH})
        if observation.tick > 30
        else observation
        for observation in fitting
    ]
    assert not votes_of(grown)


def test_gradients_that_agree_all_at_once_are_no_reason_to_raise_the_rate() -> None:
    """Stale ones do, for they are the mean of those before; a rate that fell explains it. One that fell far was meant
    to: a schedule in steps."""

    def agreeing(rate: float) -> list[Observation]:
        return [
            runs.seen(observation.tick, {**observation.metrics, "optim/grad_momentum_cos": 0.8, "learning_rate": rate})
            if observation.tick > 60
            else runs.seen(observation.tick, {**observation.metrics, "learning_rate": 3e-3})
            for observation in observations(TUNED_LENGTH / 3, ticks=80)
        ]

    assert not [vote for vote in votes_of(agreeing(3e-3)) if vote.actuator == "optimizer.lr_scale"]
    assert [vote.value for vote in votes_of(agreeing(2e-3)) if vote.actuator == "optimizer.lr_scale"][:1] == [3.0]
    assert not [vote for vote in votes_of(agreeing(1e-4)) if vote.actuator == "optimizer.lr_scale"]
