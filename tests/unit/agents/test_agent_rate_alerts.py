"""The rate's agent advises to divide a rate that is far too high, and is silent in runs that a good rate may have."""

from __future__ import annotations

import random
from collections.abc import Sequence

import pytest
from tests.support import runs

from oven_agents.sdk.agent_session import Session
from oven_agents.shipped.learning_rate import LearningRate
from oven_agents.stats.lost_progress import RISE_TICKS
from oven_agents.stats.update_to_weight_ratio import HUGE_LENGTH
from oven_core.protocol.alerts import Alert
from oven_core.protocol.messages import Observation, RunStarted

FALLING = [2 + 4 / (1 + 0.1 * tick) for tick in range(100)]


def alerts_of(observations: Sequence[Observation], run: RunStarted | None = None) -> list[Alert]:
    session = Session(LearningRate(), "me")
    session.absorb(run or runs.pretraining())
    alerts = list[Alert]()
    for observation in observations:
        session.absorb(observation)
        alerts += [message for message in session.react() if isinstance(message, Alert)]
    assert not session.problems
    return alerts


def observations(losses: Sequence[float], lengths: Sequence[float] = (), rate: float = 0.1) -> list[Observation]:
    """Return one observation per loss. Steps without a length in `lengths` are 1 % of the weights."""
    padded = [*lengths, *[0.01] * (len(losses) - len(lengths))]
    return [
        runs.seen(tick, {"loss": loss, "optim/update_ratio": length, "learning_rate": rate})
        for tick, (loss, length) in enumerate(zip(losses, padded, strict=True), 1)
    ]


def test_three_steps_longer_than_the_weights_raise_an_alert_that_names_the_rate() -> None:
    [alert] = alerts_of(observations(FALLING, [0.02, 0.5, 0.6, 0.4, 0.2]))
    assert (alert.state, alert.symptom, alert.tick) == ("raised", "update_ratio_high", 4)
    assert alert.value == pytest.approx(0.5) and alert.expected == HUGE_LENGTH
    assert "by 50% of their norm" in alert.reason and "The learning rate (0.1) is probably far too high" in alert.reason


def test_an_alert_without_a_measured_rate_names_no_rate() -> None:
    steps = [
        o.model_copy(update={"metrics": {"loss": o.metrics["loss"]}}) for o in observations([5.0] * 3 + [50.0] * 20)
    ]
    [alert] = alerts_of(steps)
    assert "The learning rate is probably far too high" in alert.reason


def test_the_alert_on_long_steps_ends_when_the_rate_is_halved() -> None:
    high, low = observations(FALLING[:30], [0.5] * 5), observations(FALLING[:60], rate=0.04)[30:]
    assert [(alert.state, alert.tick) for alert in alerts_of([*high, *low])] == [("raised", 3), ("cleared", 31)]


@pytest.mark.parametrize(
    "lengths",
    [
        pytest.param([0.16, 0.14, 0.12, 0.1, 0.08], id="first steps of Adam without a warm-up"),
        pytest.param([0.02 * tick for tick in range(15)] + [0.3] * 20, id="warm-up to long steps"),
        pytest.param([0.01] * 20 + [1.0], id="one outlier"),
    ],
)
def test_lengths_that_tuned_runs_have_raise_no_alert(lengths: list[float]) -> None:
    assert not alerts_of(observations(FALLING, lengths))


@pytest.mark.parametrize("scatter", [0.0, 0.3, 0.8])
def test_a_loss_that_stays_above_its_start_raises_an_alert_that_names_the_rate(scatter: float) -> None:
    generator = random.Random(1)
    losses = [5.5, 5.4, 5.6] + [50 * 10 ** generator.uniform(-scatter, scatter) for _ in range(40)]
    [alert] = alerts_of(observations(losses))
    assert (alert.state, alert.symptom, alert.tick) == ("raised", "loss_creeps_up", 3 + RISE_TICKS)
    assert "worse than 5.6 at the start. The learning rate (0.1) is probably far too high" in alert.reason


def test_the_alert_on_the_loss_ends_when_the_loss_is_back_at_its_start() -> None:
    losses = [5.0] * 3 + [8.0] * 20 + [5.2] * 20 + [4.0] * 20
    cleared_after = 43 + RISE_TICKS // 2
    assert [(alert.state, alert.tick) for alert in alerts_of(observations(losses))] == [
        ("raised", 3 + RISE_TICKS),
        ("cleared", cleared_after),
    ]


def test_a_noisy_loss_or_a_short_excursion_raises_no_alert() -> None:
    generator = random.Random(2)
    assert not alerts_of(observations([generator.gauss(1.0, 0.3) for _ in range(400)])), "a noisy loss, nothing learnt"
    assert not alerts_of(observations([5.0] * 3 + [20.0] * (RISE_TICKS - 1) + [4.0] * 40)), "first steps, no warm-up"
    assert not alerts_of(observations([5.0] * 3 + [5.5] * 40)), "a little worse"


def test_a_loss_that_rises_late_raises_no_alert_that_names_the_rate() -> None:
    """Bad data or a fault, more likely than a rate that was good for a third of the run."""
    assert not alerts_of(observations([5.0] * 3 + [3.0] * 300 + [20.0] * 40))


def test_a_resumed_run_or_a_reward_raises_no_alert_on_the_loss() -> None:
    rising = observations([5.0] * 3 + [50.0] * 40, [0.5] * 5)
    resumed = [o.model_copy(update={"step": o.step + 500}) for o in observations([5.0] * 3 + [50.0] * 40)]
    assert not alerts_of(resumed), "the first loss in the window is not that of the start"
    assert not alerts_of(rising, runs.grpo()), "the loss of a policy has no level"
