"""Symptoms: where each begins and ends, what is no symptom, and that an alert is said once and cleared once."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given
from hypothesis import strategies as st
from tests.support import runs

from oven_agents.sdk.active_symptoms import MAX_ACTIVE
from oven_agents.sdk.agent import Agent
from oven_agents.sdk.agent_session import Session
from oven_agents.sdk.alternative_plans import Alternatives
from oven_agents.sdk.window import Window
from oven_agents.shipped.calibration_drift import CalibrationDrift
from oven_agents.shipped.drift import Drift
from oven_agents.shipped.entropy_collapse import EntropyCollapse
from oven_agents.stats.symptoms import (
    REFERENCE_LAG,
    REFERENCE_LENGTH,
    detect_calibration_drift,
    detect_confidence_collapse,
    detect_equal_advantages,
    detect_equal_rewards,
    detect_kl_runaway,
    is_below,
)
from oven_core.protocol.alerts import Alert
from oven_core.protocol.messages import ActuatorSpec, MetricSpec, RunStarted, Vote

ECE, NULL, HIGH = "calibration/ece", "calibration/ece_null", "calibration/ece_null_99"


@given(st.lists(st.floats(0, 1), max_size=60))
def test_a_state_ends_when_the_median_crosses_the_upper_bound(values: list[float]) -> None:
    result = is_below(values, 0.3, 0.5)
    levels = [sorted(values[index - 4 : index + 1])[2] for index in range(4, len(values))]
    state = False
    for level in levels:  # the same, forwards
        state = True if level < 0.3 else False if level >= 0.5 else state
    assert result == state


def test_constant_confidences_are_a_collapse_and_calibrated_ones_are_not() -> None:
    finding = detect_confidence_collapse([0.02] * 5)
    assert finding is not None and (finding.symptom, finding.expected) == ("confidence_collapse", 0.1)
    assert detect_confidence_collapse([0.02] * 4) is None, "four values are no level"
    assert detect_confidence_collapse([0.2] * 20, 0.25) is None
    assert detect_confidence_collapse([0.15] * 20, 0.45) is not None, "a fall to a third"
    assert detect_confidence_collapse([0.02] * 9, 0.25, [0.97] * 5) is None, "nearly all is right, and says so"


@pytest.mark.parametrize("reward", [0.0, 0.5, 1.0])
@pytest.mark.parametrize("gauge", [{"frac_reward_zero_std": 1.0}, {"reward_std": 0.0}])
def test_a_reward_function_that_tells_nothing_apart_is_reported_within_20_steps(
    gauge: dict[str, float], reward: float
) -> None:
    session = Session(EntropyCollapse(), "me")
    made = runs.grpo()
    names = {"reward", *gauge}
    session.absorb(made.model_copy(update={"metrics": tuple(m for m in made.metrics if m.name in names)}))
    raised = list[Alert]()
    for tick in range(1, 21):
        session.absorb(runs.seen(tick, {"reward": reward, **gauge}))
        raised += [message for message in session.react() if isinstance(message, Alert)]
    assert [(alert.state, alert.symptom) for alert in raised] == [("raised", "zero_advantage_groups")]
    assert "the policy is not learning" in raised[0].reason


def test_equal_groups_are_no_symptom_at_the_ceiling_or_while_some_group_has_a_spread() -> None:
    assert detect_equal_rewards([1.0] * 20, [0.95, 1.0] * 5) is None
    assert detect_equal_rewards([1.0] * 14 + [0.75], [0.0] * 15) is None
    assert detect_equal_rewards([1.0] * 20 + [0.5] * 3, [0.0] * 23) is None, "it has ended"


def test_advantages_alike_are_one_except_at_the_ceiling() -> None:
    assert detect_equal_advantages([0.3] * 10 + [0.001] * 5, [0.5] * 5) is not None
    assert detect_equal_advantages([0.001] * 9, [0.95] * 5) is None
    assert detect_equal_advantages([0.05] * 9, [0.5] * 5) is None


def test_a_kl_runs_away_when_it_triples_beyond_where_training_begins() -> None:
    calm = [0.2] * (REFERENCE_LAG + REFERENCE_LENGTH)
    assert detect_kl_runaway([*calm, *(0.2 * 1.3**step for step in range(15))]) is not None
    assert detect_kl_runaway([*calm, *([math.inf] * 5)]) is not None
    assert detect_kl_runaway([0.001 * step for step in range(60)]) is None, "from nothing"
    assert detect_kl_runaway(calm * 2) is None
    assert detect_kl_runaway([*calm, *([3.0] * 40)]) is not None, "it stopped rising, but is still far above 0.2"
    assert detect_kl_runaway([*calm, *([3.0] * 40), *([0.5] * 3)]) is None, "it came back"


def test_calibration_drifts_at_the_second_reading_beyond_chance() -> None:
    def readings(*errors: float) -> list[tuple[int, float, float]]:
        return [(tick, error, 0.05) for tick, error in enumerate(errors)]

    well = [0.03] * 8
    assert detect_calibration_drift(readings(*well, 0.3)) is None, "once"
    assert detect_calibration_drift(readings(*well, *[0.3] * 6)) is not None
    assert detect_calibration_drift(readings(*well, *[0.06] * 20)) is None, "beyond chance, and too little to matter"
    assert detect_calibration_drift(readings(*well, *[0.3] * 6, 0.06, 0.06)) is not None, "not back within chance yet"
    assert detect_calibration_drift(readings(*well, *[0.3] * 6, 0.04)) is None
    assert detect_calibration_drift([]) is None


def oracle(*knobs: str) -> RunStarted:
    names = ("reward", "confidence/std", "informativeness/mean", "advantage/std", "kl", "completions/mean_length")
    specs = {
        "optimizer.lr_scale": ActuatorSpec(name="optimizer.lr_scale", kind="scalar", low=0.05, high=4.0, value=1.0),
        "reward.calibration": ActuatorSpec(
            name="reward.calibration", kind="scalar", low=0.0, high=1.0, value=0.2, moves_own_metric=True
        ),
        "run.rollback": ActuatorSpec(name="run.rollback", kind="action", effect="moves_weights"),
    }
    metrics = [MetricSpec(name=name) for name in (*names, ECE, NULL, HIGH)]
    metrics.append(MetricSpec(name="eval/brier", better="down", held_out=True))
    made = runs.grpo()
    return made.model_copy(
        update={"actuators": tuple(specs[name] for name in knobs or specs), "metrics": tuple(metrics)}
    )


HEALTHY = {
    "reward": 0.5, "confidence/std": 0.25, "informativeness/mean": 0.6, "advantage/std": 0.3, "kl": 0.1,
    "completions/mean_length": 20.0, ECE: 0.03, NULL: 0.03, HIGH: 0.05,
}  # fmt: skip


def messages_of(
    agent: Agent, phases: Sequence[tuple[int, dict[str, float]]], run: RunStarted | None = None
) -> list[object]:
    """All that it says; each phase is a number of ticks and what differs from HEALTHY."""
    session, tick, messages = Session(agent, "amy"), 0, list[object]()
    session.absorb(run or oracle())
    for ticks, changed in phases:
        for _ in range(ticks):
            tick += 1
            session.absorb(runs.seen(tick, HEALTHY | changed))
            messages += session.react()
            assert not session.problems
    return messages


CASES: list[tuple[type[Agent], str, dict[str, float]]] = [
    (EntropyCollapse, "confidence_collapse", {"confidence/std": 0.01}),
    (EntropyCollapse, "zero_advantage_groups", {"advantage/std": 0.001}),
    (Drift, "length_shrinks", {"completions/mean_length": 5.0}),
    (Drift, "kl_runaway", {"kl": 3.76}),
    (CalibrationDrift, "calibration_drift", {ECE: 0.3}),
]


@pytest.mark.parametrize(("agent", "symptom", "fault"), CASES, ids=[case[1] for case in CASES])
def test_an_alert_is_said_once_and_cleared_once(agent: type[Agent], symptom: str, fault: dict[str, float]) -> None:
    alerts = [word for word in messages_of(agent(), [(30, {}), (30, fault), (30, {})]) if isinstance(word, Alert)]
    assert [(alert.symptom, alert.state) for alert in alerts] == [(symptom, "raised"), (symptom, "cleared")]
    assert 30 < alerts[0].tick <= 40 and alerts[0].reason and 60 < alerts[1].tick <= 66
    (metric,) = fault
    assert alerts[0].metric == alerts[1].metric == metric
    assert alerts[1].value == HEALTHY[metric], "what it is now"


def test_a_kl_that_runs_away_is_said_and_beta_or_the_rate_is_proposed() -> None:
    phases = [(30, {}), *((1, {"kl": 0.1 * 1.3**step}) for step in range(20))]
    words = messages_of(Drift(), phases)
    assert [message.symptom for message in words if isinstance(message, Alert)] == ["kl_runaway"]
    votes = [message for message in words if isinstance(message, Vote)]
    assert votes and votes[0].actuator == "optimizer.lr_scale"
    assert votes[0].evidence == ("symptom:kl_runaway", "signal:policy:kl,frontier/bits_per_byte,frontier/kl")


def plans(words: Sequence[object]) -> list[tuple[str, dict[str, object]]]:
    first = next(word for word in words if isinstance(word, Alternatives))
    return [(plan.remedy, {vote.actuator: vote.value for vote in plan.votes}) for plan in first.plans]


def test_overconfidence_from_the_start_raises_the_weight_of_calibration() -> None:
    proposed_plans = plans(messages_of(CalibrationDrift(), [(30, {ECE: 0.3})]))
    assert proposed_plans == [
        ("raise_calibration", {"reward.calibration": 0.4}),
        ("lower_lr", {"optimizer.lr_scale": 0.5}),
    ]


class Many(Agent):
    """More symptoms than an agent may have."""

    def vote(self, window: Window) -> None:
        return None

    def alerts(self, window: Window) -> list[Alert]:
        made = [window.alert(f"s{n}", "reward", value=math.nan, expected=0.0, why="x" * 9999) for n in range(40)]
        return made if window.tick < 5 else []


def test_an_agent_has_at_most_the_limit_of_active_symptoms() -> None:
    alerts = [word for word in messages_of(Many(), [(10, {})]) if isinstance(word, Alert)]
    assert [alert.state for alert in alerts] == ["raised"] * MAX_ACTIVE + ["cleared"] * MAX_ACTIVE
    assert all(len(alert.wire()) < 2000 for alert in alerts)


def test_a_restarted_agent_remembers_its_raised_alerts() -> None:
    session = Session(CalibrationDrift(), "amy")
    session.absorb(oracle())
    for tick in range(1, 31):
        session.absorb(runs.seen(tick, HEALTHY | {ECE: 0.3}))
    raised = Window(oracle(), [runs.seen(20, HEALTHY)], {}, [], {}).alert(
        "calibration_drift", ECE, value=0.3, expected=0.05
    )
    session.absorb(raised)  # from history
    assert not [word for word in session.react() if isinstance(word, Alert)]
    session.absorb(runs.seen(31, HEALTHY))
    assert [word.state for word in session.react() if isinstance(word, Alert)] == ["cleared"]
