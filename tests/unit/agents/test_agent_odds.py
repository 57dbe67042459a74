"""A confidence is the probability of being seen to beat doing nothing."""

import random
from statistics import fmean

import pytest

from oven_agents.sdk.window import Window
from oven_agents.stats.confidence import LEAST, odds
from oven_controller.mesh.effect import effect
from oven_controller.mesh.reputation import beaten
from oven_controller.protocol.messages import MetricSpec, Observation, RunStarted

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


@pytest.mark.parametrize("gain", [0.02, 0.05, 0.1, 0.2])
def test_of_a_gain_that_comes_true_it_says_what_outcomes_will(gain: float) -> None:
    """In the mean over outcomes, each drawn with noise and measured as the mesh does."""
    deviation, horizon, draw = 0.1, 20, random.Random(1)
    said, came = [], []
    for seed in range(300):
        before = noisy(deviation, horizon, seed)
        said.append(odds(window([*noisy(deviation, 40, seed + 1000), *before]), 1.0, "loss", gain, horizon))
        after = [draw.gauss(3.0 - gain, deviation) for _ in range(horizon // 2)]
        found = effect(before, after, -1, before)
        came.append(beaten(found.gain, found.noise, None))
    assert fmean(said) == pytest.approx(max(LEAST, fmean(came)), abs=0.06)
