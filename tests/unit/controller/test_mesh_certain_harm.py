"""Harm that is beyond doubt, for which one proposal is enough."""

from __future__ import annotations

import math
from collections.abc import Sequence

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from tests.support.mesh_log import LR, Log

from oven_core.mesh.certain_harm import GONE_TICKS, LEVEL_TICKS, describe_certain_harm
from oven_core.mesh.measurements import Measurements
from oven_core.protocol.messages import MetricSpec

RECENT = 10


def harm(values: Sequence[float], metric: str = "reward", until: int | None = None) -> str:
    measurements = Measurements((metric,))
    for tick, value in enumerate(values):
        measurements.add(tick, tick, {metric: value})
    return describe_certain_harm(measurements, len(values) - 1 if until is None else until, RECENT)


@pytest.mark.parametrize("value", [math.nan, math.inf, -math.inf, 1e101])
def test_a_newest_value_that_is_not_finite_is_certain_harm(value: float) -> None:
    assert harm([1.0, value], "loss") == "loss is not finite"
    assert harm([value, 1.0], "loss") == "", "it recovered"
    assert harm([1.0, value], "loss", until=1 + RECENT) == "", "it is too long ago"


def test_a_reward_that_is_gone_is_certain_harm_as_long_as_it_is_gone() -> None:
    levels = [0.8] * LEVEL_TICKS
    assert harm([*levels, *[0.01] * (GONE_TICKS - 1)]) == ""
    for ticks in (GONE_TICKS, 3 * GONE_TICKS):
        assert harm([*levels, *[0.01] * ticks]) == "reward fell from 0.8 to 0.01"
    assert harm([*levels, *[0.01] * GONE_TICKS, 0.5]) == ""


def test_a_reward_that_is_lower_but_not_gone_is_in_doubt() -> None:
    assert harm([*[0.8] * LEVEL_TICKS, *[0.1] * GONE_TICKS]) == ""


def test_a_reward_that_was_never_high_is_not_gone() -> None:
    assert harm([0.0] * 60) == "" and harm([]) == "" and harm([0.5] * 8 + [0.0] * 8) == ""
    assert harm([*[-1.0] * LEVEL_TICKS, *[-9.0] * GONE_TICKS]) == "", "a share of a negative level means nothing"


@settings(max_examples=40, deadline=None)
@given(st.lists(st.sampled_from([0.0, 0.0, 1.0]), min_size=40, max_size=150))
def test_sparse_rewards_that_are_zero_five_times_in_a_row_are_not_gone(rewards: list[float]) -> None:
    """A quarter of the values of each level may be zero. These have about two thirds."""
    windows = [rewards[start : start + LEVEL_TICKS] for start in range(len(rewards) - LEVEL_TICKS + 1)]
    if all(window.count(0.0) > LEVEL_TICKS / 4 for window in windows):
        assert harm([*rewards, *[0.0] * GONE_TICKS]) == ""


def test_rewards_that_are_often_zero_are_not_gone() -> None:
    assert harm([*[1.0, 0.0, 1.0, 1.0, 0.0] * 12, *[0.0] * GONE_TICKS]) == ""


@pytest.mark.parametrize(("loss", "verdict"), [(1.0, "rejected"), (math.nan, "adopted")])
def test_one_proposal_is_enough_while_the_loss_is_not_finite(loss: float, verdict: str) -> None:
    log = Log.running("amy", "bob")
    log.tick(3, loss=loss)
    log.propose("amy", 0.5, confidence=0.9)
    log.vote("bob", "abstain")
    assert log.verdict == verdict
    if verdict == "adopted":
        assert log.last.reason.endswith("one proposal at 0.6 is enough, because loss is not finite")


def test_a_restart_forgets_the_harm_of_the_process_before_it() -> None:
    log = Log.running("amy", "bob")
    log.tick(3, loss=math.nan)
    assert log.mesh.outcomes.harm_beyond_doubt() == "loss is not finite"
    log.restart(metrics=(MetricSpec(name="loss", better="down"),), tick=3)
    assert log.mesh.outcomes.harm_beyond_doubt() == ""
    log.tick(loss=1.0)
    assert log.mesh.outcomes.harm_beyond_doubt() == "" and log.mesh.state.effective[LR] == 1.0
