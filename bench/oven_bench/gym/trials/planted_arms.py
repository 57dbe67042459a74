"""What the benches try on the gym's two usual tasks: settings, mixtures, a way back, and plans of two."""

from __future__ import annotations

from collections.abc import Mapping

from oven_bench.gym.arms.auto_rate import RATE
from oven_bench.gym.fault import Trainee
from oven_bench.gym.trials.ordered_trials import Changes
from oven_core.protocol.actions import ROLLBACK

SHARES: Mapping[str, Mapping[str, float]] = {
    "pretraining": {"modules": 0.1, "packages": 0.1, "network": 0.2, "tables": 0.6},
    "grpo": {"level_3": 0.8, "level_4": 0.1, "level_5": 0.1},
}
OWN: Mapping[str, tuple[Changes, ...]] = {
    "pretraining": ({"optimizer.weight_decay": 0.5}, {"data.skip": 17}),
    "grpo": ({"grpo.beta": 1.0}, {"reward.weights": {"exact": 0.05, "format": 0.9, "critic": 0.05}}),
}
"""Of a task alone."""
TASKS = tuple(OWN)


def arms(kind: str, tick: int) -> list[Changes]:
    """One after another, each in its own trial, from `tick` on."""
    plan = {RATE: 0.5, "grad.clip": 0.3}
    back = {ROLLBACK: tick - 8}
    mixture: Changes = {"data.mixture": dict(SHARES[kind])}
    return [{RATE: 0.3}, {"grad.clip": 0.05}, mixture, back, plan, {RATE: 0.5, **back}, *OWN[kind]]


def effects(kind: str) -> list[Changes]:
    """Of several sizes, from next to nothing to a broken run, in both directions."""
    rates = [{RATE: factor} for factor in (0.1, 0.4, 0.8, 1.25, 3.0, 10.0)]
    clips = [{"grad.clip": clip} for clip in (0.02, 0.2)]
    return [*rates, *clips, {"data.mixture": dict(SHARES[kind])}, *OWN[kind]]


def unchanged(trainee: Trainee) -> list[Changes]:
    """Each setting at its own value."""
    return [{spec.name: spec.value} for spec in trainee.actuators.specs() if spec.kind != "action"]
