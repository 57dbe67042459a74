"""A confidence is the probability of being seen to beat doing nothing."""

import random
from statistics import fmean

import pytest

from oven_agents.sdk.window import Window
from oven_agents.stats.confidence import FIRM_CONFIDENCE, estimate_confidence, firm_confidence, tentative_confidence
from oven_core.mesh.measurements import measure_effect
from oven_core.mesh.reputation import beat_probability
from oven_core.protocol.messages import MetricSpec, Observation, RunStarted
from oven_core.protocol.rules import Rules

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
    assert estimate_confidence(window(noisy(0.01)), hit_rate=0.95, target="loss", gain=0.5, horizon=20) == 0.95
    assert (
        estimate_confidence(window(noisy(1.0)), hit_rate=0.95, target="loss", gain=0.02, horizon=20) == FIRM_CONFIDENCE
    )
    assert estimate_confidence(window([3.0] * 60), hit_rate=0.95, target="loss", gain=0.02, horizon=20) == 0.95


@pytest.mark.parametrize("gain", [0.02, 0.05, 0.1, 0.2])
def test_the_stated_confidence_matches_later_outcomes(gain: float) -> None:
    """In the mean over outcomes, each drawn with noise and measured as the mesh does."""
    deviation, horizon, draw = 0.1, 20, random.Random(1)
    confidences, came = [], []
    for seed in range(300):
        before = noisy(deviation, horizon, seed)
        seen = window([*noisy(deviation, 40, seed + 1000), *before])
        confidences.append(estimate_confidence(seen, hit_rate=1.0, target="loss", gain=gain, horizon=horizon))
        after = [draw.gauss(3.0 - gain, deviation) for _ in range(horizon // 2)]
        measured = measure_effect(before, after, -1, before)
        came.append(beat_probability(measured.gain, measured.noise))
    assert fmean(confidences) == pytest.approx(max(FIRM_CONFIDENCE, fmean(came)), abs=0.06)


def strict(quorum: float) -> RunStarted:
    return RUN.model_copy(update={"rules": Rules(quorum_confidence=quorum)})


@pytest.mark.parametrize(
    ("quorum", "tentative", "firm"), [(0.6, 0.55, 0.65), (0.5, 0.45, 0.65), (0.8, 0.55, 0.85), (1.0, 0.55, 1.0)]
)
def test_confidence_levels_follow_the_runs_quorum(quorum: float, tentative: float, firm: float) -> None:
    run = strict(quorum)
    assert (tentative_confidence(run), firm_confidence(run)) == (tentative, firm)


def test_noise_alone_takes_no_agent_below_the_runs_quorum_and_nothing_above_its_hit_rate() -> None:
    seen = Window(strict(0.8), window(noisy(1.0)).observations, {}, (), {})
    assert estimate_confidence(seen, hit_rate=0.95, target="loss", gain=0.02, horizon=20) == 0.85
    assert estimate_confidence(seen, hit_rate=0.7, target="loss", gain=0.02, horizon=20) == 0.7
