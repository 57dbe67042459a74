"""A run that begins near the ceiling: its reward hardly rises any more, and its groups hardly differ."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.severity import whole
from oven_learner.gym.grpo.warmup import warm_weights
from oven_learner.gym.trainee import Kind, Trainee

ALMOST = 0.97
"""Share of right targets in its warm-up."""


@dataclass(frozen=True)
class Ceiling(Case):
    """Its policy had a warm-up of so many steps on right answers."""

    onset: int
    steps: int

    def weights(self, trainee: Trainee) -> None:
        if trainee.cursor == 0:  # the beginning of the data, and each return to it
            trainee.model.load_state_dict(warm_weights(trainee.seed, self.steps, ALMOST))


class NearCeiling(Family):
    name: ClassVar[str] = "grpo.near_ceiling"
    kind: ClassVar[Kind] = "grpo"
    healthy: ClassVar[bool] = True

    def draw(self, rng: Random, onset: int) -> Ceiling:
        return Ceiling(0, whole(rng, 180, 300))
