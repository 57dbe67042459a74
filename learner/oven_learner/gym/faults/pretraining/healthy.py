"""A run with nothing wrong and nothing new."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.trainee import Kind


@dataclass(frozen=True)
class Nothing(Case):
    onset: int


class Healthy(Family):
    name: ClassVar[str] = "pretraining.healthy"
    kind: ClassVar[Kind] = "pretraining"
    healthy: ClassVar[bool] = True

    def draw(self, rng: Random, onset: int) -> Nothing:
        return Nothing(onset)
