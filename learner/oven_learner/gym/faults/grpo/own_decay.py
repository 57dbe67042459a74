"""The user's own schedule ends: the rate falls in a straight line to a twentieth."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.severity import whole
from oven_learner.gym.trainee import Kind, Trainee

END = 0.05
"""Of the user's own rate."""


@dataclass(frozen=True)
class Decay(Case):
    onset: int
    length: int
    """Gradient steps; at the end rate from then on."""

    def settings(self, trainee: Trainee) -> None:
        done = min(1.0, max(0, trainee.gradient_steps - self.onset) / self.length)
        trainee.settings["learning_rate"] *= 1 - (1 - END) * done


class OwnDecay(Family):
    name: ClassVar[str] = "grpo.own_decay"
    kind: ClassVar[Kind] = "grpo"
    healthy: ClassVar[bool] = True

    def draw(self, rng: Random, onset: int) -> Decay:
        return Decay(onset, whole(rng, 100, 50))
