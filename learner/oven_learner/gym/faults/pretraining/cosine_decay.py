"""The user's own schedule ends: the rate falls along a cosine to a tenth."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import ClassVar

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.severity import whole
from oven_learner.gym.trainee import Kind, Trainee

END = 0.1
"""Of the user's own rate."""


@dataclass(frozen=True)
class Cosine(Case):
    onset: int
    length: int
    """Gradient steps; at the end rate from then on."""

    def settings(self, trainee: Trainee) -> None:
        done = min(1.0, max(0, trainee.gradient_steps - self.onset) / self.length)
        trainee.settings["learning_rate"] *= END + (1 - END) * (1 + math.cos(math.pi * done)) / 2


class CosineDecay(Family):
    name: ClassVar[str] = "pretraining.cosine_decay"
    kind: ClassVar[Kind] = "pretraining"
    healthy: ClassVar[bool] = True

    def draw(self, rng: Random, onset: int) -> Cosine:
        return Cosine(onset, whole(rng, 100, 50))
