"""The user warms up a second time, as when training goes on with new data: the rate falls and climbs back."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.severity import whole
from oven_learner.gym.trainee import Kind, Trainee


@dataclass(frozen=True)
class Warmup(Case):
    onset: int
    length: int

    def settings(self, trainee: Trainee) -> None:
        since = trainee.gradient_steps - self.onset
        if 0 <= since < self.length:
            trainee.settings["learning_rate"] *= (since + 1) / self.length


class SecondWarmup(Family):
    name: ClassVar[str] = "pretraining.second_warmup"
    kind: ClassVar[Kind] = "pretraining"
    healthy: ClassVar[bool] = True

    def draw(self, rng: Random, onset: int) -> Warmup:
        return Warmup(onset, whole(rng, 10, 50))
