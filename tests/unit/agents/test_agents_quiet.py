"""Every shipped agent leaves healthy runs alone: the false alarms that its docstring states, by simulation."""

from __future__ import annotations

import math
import random
import tomllib
from importlib import import_module
from pathlib import Path

import pytest
from tests.support import runs

from oven_agents import Agent
from oven_agents.stats.level_shift import standardised_rise
from oven_core.protocol.messages import RunStarted
from oven_core.protocol.rules import Rules

POINTS = tomllib.loads(Path("pyproject.toml").read_text())["project"]["entry-points"]["oven.agents"]
QUORUM = Rules().quorum_confidence
"""Below it a proposal is advice: nothing comes of it unless somebody else sees something too."""
TICKS, SEEDS = 400, 2


def agents() -> dict[str, Agent]:
    instances = {}
    for name, point in POINTS.items():
        module, _, kind = point.partition(":")
        instances[name] = getattr(import_module(module), kind)()
    return instances


def heavy(draw: random.Random) -> float:
    """Student's t with three degrees of freedom: one value in a hundred beyond four and a half."""
    return 0.1 * draw.gauss(0, 1) / math.sqrt(draw.gammavariate(1.5, 2) / 3)


HEALTHY = {
    "plain": runs.language(),
    "heavy tails": runs.language(noise=heavy),
    "noisy": runs.language(noise=lambda draw: draw.gauss(0, 0.6)),
    "plateau": runs.language(loss=lambda t: 2.5 if t > 60 else 2.5 + (60 - t) / 30),
    "warm-up": runs.language(rate=lambda t: 3e-3 * min(1.0, t / 150)),
    "cosine": runs.language(rate=lambda t: 1.5e-3 * (1.1 + math.cos(math.pi * t / TICKS))),
    "second warm-up": runs.language(rate=lambda t: 3e-3 * min(1.0, t / 20 if t < 200 else (t - 195) / 60)),
}
REINFORCED = {
    "plain": runs.sorting(),
    "ceiling": runs.sorting(reward=lambda t: 0.97, entropy=lambda t: 0.05),
    "plateau": runs.sorting(reward=lambda t: 0.6, entropy=lambda t: 0.4),
    "decay": runs.sorting(rate=lambda t: 3e-3 * (1 - 0.9 * t / TICKS)),
}


@pytest.mark.parametrize("shape", HEALTHY)
def test_a_healthy_pretraining_run_is_left_alone(shape: str) -> None:
    _quiet(runs.pretraining(), HEALTHY[shape])


@pytest.mark.parametrize("shape", REINFORCED)
def test_a_healthy_grpo_run_is_left_alone(shape: str) -> None:
    _quiet(runs.grpo(), REINFORCED[shape])


def _quiet(run: RunStarted, gauges: runs.Gauges) -> None:
    for seed in range(SEEDS):
        observations = runs.observed(gauges, range(1, TICKS + 1), seed)
        spoke = {
            name: [
                (vote.tick, vote.actuator, vote.rationale)
                for vote in runs.votes(agent, run, observations)
                if vote.confidence >= QUORUM
            ]
            for name, agent in agents().items()
        }
        assert not {name: words for name, words in spoke.items() if words}


def test_noise_alone_rarely_rises_above_the_threshold() -> None:
    """4.5 is as rare as 3.6 of a normal distribution would be (0.00016), because the noise is only estimated."""
    draw = random.Random(7)
    trials = [[draw.gauss(0, 1) for _ in range(42)] for _ in range(6000)]
    assert sum(standardised_rise(trial, 10) > 4.5 for trial in trials) <= 6
    shifted = [[value + 2.5 * (index >= 32) for index, value in enumerate(trial)] for trial in trials[:300]]
    assert sum(standardised_rise(trial, 10) > 4.5 for trial in shifted) > 270
