"""A confidence is the probability of being seen to beat doing nothing."""

import random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from oven_agents.odds import LEAST, odds
from oven_agents.window import Window
from oven_controller.mesh.effect import effect
from oven_controller.mesh.reputation import beaten
from oven_controller.messages import MetricSpec, Observation, RunStarted

RUN = RunStarted(incarnation=1, n=0, recipe="toy", metrics=(MetricSpec(name="loss", better="down"),))


def window(values: list[float], every: int = 1) -> Window:
    seen = [
        Observation(
            incarnation=1, n=n + 1, tick=n, step=n, progress=0.0, metrics={"loss": value} if n % every == 0 else {}
        )
        for n, value in enumerate(values)
    ]
    return Window(RUN, seen, {}, (), {})


def noisy(deviation: float, count: int = 60, seed: int = 0) -> list[float]:
    draw = random.Random(seed)
    return [draw.gauss(3.0, deviation) for _ in range(count)]


def test_what_stands_out_is_as_sure_as_it_ever_was_and_what_does_not_is_even_odds() -> None:
    assert odds(window(noisy(0.01)), 0.95, "loss", 0.5, 20) == 0.95
    assert odds(window(noisy(1.0)), 0.95, "loss", 0.02, 20) == LEAST
    assert odds(window([3.0] * 60), 0.95, "loss", 0.02, 20) == 0.95


def test_a_rollback_that_throws_little_away_has_little_to_show() -> None:
    seen = window(noisy(0.1))
    assert odds(seen, 0.95, "loss", 0.1, 20, back=57) < odds(seen, 0.95, "loss", 0.1, 20, back=30)


@pytest.mark.parametrize("every", [20, 100])
def test_a_metric_that_is_measured_too_rarely_has_no_known_noise(every: int) -> None:
    assert odds(window(noisy(0.1), every), 0.8, "loss", 0.001, 40) == 0.8


@given(st.floats(0.01, 0.3), st.integers(0, 10_000))
def test_of_a_gain_that_comes_true_it_says_what_outcomes_will(gain: float, seed: int) -> None:
    """The mean over many outcomes: each is drawn with noise, as the mesh draws it."""
    deviation, horizon = 0.1, 20
    before = noisy(deviation, horizon, seed)
    said = odds(window([*noisy(deviation), *before]), 1.0, "loss", gain, horizon)
    draw = random.Random(seed)
    outcomes = []
    for _ in range(200):
        after = [draw.gauss(3.0 - gain, deviation) for _ in range(horizon // 2)]
        found = effect([draw.gauss(3.0, deviation) for _ in range(horizon)], after, -1, noisy(deviation, 200))
        outcomes.append(beaten(found.gain, found.noise, None))
    assert abs(said - max(LEAST, sum(outcomes) / len(outcomes))) < 0.25
