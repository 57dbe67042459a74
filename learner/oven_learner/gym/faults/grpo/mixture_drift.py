"""The mixture drifts to the easiest level: the others are not trained any more, and are forgotten."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.severity import uniform, whole
from oven_learner.gym.grpo.task import LEVELS
from oven_learner.gym.trainee import Kind, Trainee


@dataclass(frozen=True)
class Drift(Case):
    """Over `length` gradient steps the mass `moved` goes from the other levels to the easiest."""

    onset: int
    moved: float
    length: int

    def settings(self, trainee: Trainee) -> None:
        moved = self.moved * min(1.0, max(0, trainee.gradient_steps - self.onset) / self.length)
        for level in LEVELS:
            trainee.settings[f"data.mixture/{level}"] *= 1 - moved
        trainee.settings[f"data.mixture/{LEVELS[0]}"] += moved


class MixtureDrift(Family):
    name: ClassVar[str] = "grpo.mixture_drift"
    kind: ClassVar[Kind] = "grpo"

    def draw(self, rng: Random, onset: int) -> Drift:
        return Drift(onset, uniform(rng, 0.7, 1), whole(rng, 30, 5))
