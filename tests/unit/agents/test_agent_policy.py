"""A policy that changed is told from a reward that did."""

import math
import random
from collections.abc import Mapping

import pytest

from oven_agents.sdk.window import Window
from oven_agents.stats.policy_shift import policy_shifted, quality_dropped
from oven_core.protocol.messages import MetricSpec, Observation, RunStarted

ONSET, NOW = 60, 64
HELD_OUT = MetricSpec(name="eval/accuracy", better="up", held_out=True)
RUN = RunStarted(incarnation=1, n=0, recipe="toy", metrics=(MetricSpec(name="reward", better="up"), HELD_OUT))


def window(
    readings: Mapping[int, float] | None = None, factors: Mapping[str, float] | None = None, seed: int = 0
) -> Window:
    """Gauges with a tenth of noise, each of which changes by its factor at ONSET."""
    draw = random.Random(seed)
    seen = []
    for tick in range(NOW):
        gauges = {"entropy": 0.4, "kl": 0.2, "grad_norm": 0.6}
        metrics = {
            name: level * math.exp(draw.gauss(0, 0.1)) * ((factors or {}).get(name, 1.0) if tick >= ONSET else 1.0)
            for name, level in gauges.items()
        }
        metrics |= {"eval/accuracy": readings[tick]} if readings and tick in readings else {}
        seen.append(Observation(incarnation=1, n=tick + 1, tick=tick, step=tick, progress=0.0, metrics=metrics))
    return Window(RUN, seen, {}, (), {})


@pytest.mark.parametrize("seed", range(20))
def test_gauges_that_stay_where_they_were_are_no_change_of_the_policy(seed: int) -> None:
    assert not policy_shifted(window(seed=seed), ONSET)


def test_a_younger_held_out_reading_decides() -> None:
    assert not policy_shifted(window({40: 0.8, 62: 0.81}, {"kl": 4.0}), ONSET)
    assert policy_shifted(window({40: 0.8, 62: 0.5}), ONSET)
    assert policy_shifted(window({20: 0.7, 40: 0.8}, {"kl": 4.0}), ONSET), (
        "an older one says nothing of what came since"
    )


def test_worse_is_beyond_noise_and_unknown_without_two_readings() -> None:
    assert quality_dropped(window()) is None and quality_dropped(window({40: 0.8})) is None
    assert quality_dropped(window({40: 0.8, 60: 0.79})) is False
    assert quality_dropped(window({20: 0.8, 40: 0.9, 60: 0.85})) is True


def test_a_run_without_the_gauges_needs_no_confirmation() -> None:
    bare = [
        Observation(incarnation=1, n=tick + 1, tick=tick, step=tick, progress=0.0, metrics={"reward": 0.5})
        for tick in range(NOW)
    ]
    assert policy_shifted(Window(RUN, bare, {}, (), {}), ONSET)
