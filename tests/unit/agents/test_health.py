"""The agent `health` on live runs: one alert per fault, cleared when the fault is gone, and silence otherwise."""

from __future__ import annotations

import math
import random
from collections.abc import Callable, Iterable, Sequence

import pytest
from tests.support import runs

from oven_agents.sdk.agent_session import Session
from oven_agents.shipped.health import Health
from oven_core.protocol.alerts import Alert
from oven_core.protocol.messages import Horizon, MetricSpec, Observation, Receipt, RunStarted

Level = Callable[[int], float]
TICKS = 300
LEARNING = runs.language()


def alerts(run: RunStarted, events: Iterable[Observation | Receipt]) -> list[Alert]:
    session = Session(Health(), "health")
    session.absorb(run)
    published: list[Alert] = []
    for event in events:
        session.absorb(event)
        published += [message for message in session.react() if isinstance(message, Alert)]
    assert not session.problems, session.problems
    return published


def with_values(gauges: runs.Gauges, ticks: Sequence[int], **levels: Level) -> list[Observation]:
    """Return observations in which some metrics are replaced."""
    observations = runs.observed(gauges, ticks)
    return [
        observation.model_copy(
            update={"metrics": observation.metrics | {name: level(observation.tick) for name, level in levels.items()}}
        )
        for observation in observations
    ]


def without_knobs(run: RunStarted, *metrics: MetricSpec) -> RunStarted:
    return run.model_copy(update={"actuators": (), "metrics": (*run.metrics, *metrics)})


FAULTS: dict[str, tuple[str, str, runs.Gauges, str, Level]] = {
    "diverged": ("diverged", "loss", LEARNING, "loss", lambda t: 9.0 if t >= 150 else 2.5 + 3 * math.exp(-t / 25)),
    "nan": ("nan", "loss", LEARNING, "loss", lambda t: math.nan if t >= 150 else 2.5),
    "dead": ("dead", "grad_norm", LEARNING, "grad_norm", lambda t: 0.0 if t >= 100 else 1.0),
    "no rate": ("zero_rate", "learning_rate", LEARNING, "learning_rate", lambda t: 0.0),
    "truncated": (
        "truncated", "completions/clipped_ratio", runs.sorting(), "completions/clipped_ratio", lambda t: 0.9,
    ),
    "lost reward": (
        "reward_collapse", "reward", runs.sorting(), "reward",
        lambda t: (0.02 if t >= 150 else 0.3 + t / 300) + 0.02 * math.sin(7 * t),
    ),
}  # fmt: skip


@pytest.mark.parametrize("case", FAULTS)
def test_a_fault_raises_one_alert_with_figures_and_a_remedy_also_in_a_run_without_knobs(case: str) -> None:
    kind, metric, gauges, name, level = FAULTS[case]
    base = runs.grpo() if case in ("truncated", "lost reward") else runs.pretraining()
    run = without_knobs(base, MetricSpec(name="completions/clipped_ratio"))
    published = alerts(run, with_values(gauges, range(1, TICKS + 1), **{name: level}))
    raised = [alert for alert in published if alert.symptom == kind]
    assert [alert.state for alert in raised] == ["raised"], published
    assert raised[0].metric == metric and any(map(str.isdigit, raised[0].reason))
    assert "; remedy: " in raised[0].reason


@pytest.mark.parametrize(
    ("kind", "name", "level"),
    [
        ("nan", "loss", lambda t: math.nan if 100 <= t < 120 else 2.5),
        ("dead", "grad_norm", lambda t: 0.0 if 20 <= t < 100 else 1.0 + 0.1 * (t % 7)),
        ("diverged", "loss", lambda t: 9.0 if 100 <= t < 160 else 2.5 + 3 * math.exp(-t / 25) + 0.02 * (t % 5)),
    ],
)
def test_an_alert_is_cleared_when_its_cause_is_gone(kind: str, name: str, level: Level) -> None:
    published = alerts(runs.pretraining(), with_values(LEARNING, range(1, TICKS + 1), **{name: level}))
    assert [alert.state for alert in published if alert.symptom == kind] == ["raised", "cleared"]


def heavy(draw: random.Random) -> float:
    return 0.1 * draw.gauss(0, 1) / math.sqrt(draw.gammavariate(1.5, 2) / 3)


HEALTHY: dict[str, tuple[RunStarted, runs.Gauges]] = {
    "pretraining": (runs.pretraining(), runs.language()),
    "heavy tails": (runs.pretraining(), runs.language(noise=heavy)),
    "noisy": (runs.pretraining(), runs.language(noise=lambda draw: draw.gauss(0, 0.6))),
    "loss plateau": (runs.pretraining(), runs.language(loss=lambda t: 2.5 if t > 60 else 2.5 + (60 - t) / 30)),
    "long warm-up": (
        runs.pretraining(),
        runs.language(rate=lambda t: 3e-3 * min(1, t / 200), loss=lambda t: 9 - 6 * max(0, t - 150) / 300),
    ),
    "grpo": (runs.grpo(), runs.sorting()),
    "reward at its ceiling": (runs.grpo(), runs.sorting(reward=lambda t: 0.97, entropy=lambda t: 0.05)),
    "slow reward": (runs.grpo(), runs.sorting(reward=lambda t: 0.3 + t / 1000)),
    "falling rate": (runs.grpo(), runs.sorting(rate=lambda t: 3e-3 * (1 - 0.9 * t / 400))),
}


@pytest.mark.parametrize("shape", HEALTHY)
def test_healthy_runs_raise_no_alert(shape: str) -> None:
    run, gauges = HEALTHY[shape]
    for seed in range(2):
        assert alerts(run, runs.observed(gauges, range(1, 401), seed)) == []


def test_a_converged_run_whose_start_has_left_the_window_is_not_stuck() -> None:
    run = runs.pretraining().model_copy(update={"horizon": Horizon(max_steps=20_000)})
    flat = with_values(LEARNING, range(1, 600), loss=lambda t: 2.5 + 0.01 * (t % 7))
    late = [observation.model_copy(update={"step": observation.step + 10_000}) for observation in flat]
    assert alerts(run, late) == []


def test_readings_that_a_rollback_discarded_do_not_count() -> None:
    """From tick 150, the loss is NaN; at tick 170, the run goes back to step 140 and trains well from there."""
    healthy = runs.observed(LEARNING, range(1, 150))
    broken = with_values(LEARNING, range(150, 170), loss=lambda t: math.nan, grad_norm=lambda t: math.nan)
    again = [runs.seen(tick, LEARNING(tick - 30, random.Random(tick)), step=tick - 30) for tick in range(170, 200)]
    published = alerts(runs.pretraining(), [*healthy, *broken, runs.receipt(169, "run.rollback"), *again])
    assert [(alert.state, alert.symptom) for alert in published] == [("raised", "nan"), ("cleared", "nan")]
    assert published[-1].tick <= 180, "the NaN left the record with the rollback"
