"""The learning rate is set too high, and stays so."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.severity import log_uniform
from oven_learner.gym.trainee import Kind, Trainee


@dataclass(frozen=True)
class Rate(Case):
    """`factor` times the user's own rate, from the onset on."""

    onset: int
    factor: float

    def settings(self, trainee: Trainee) -> None:
        if trainee.gradient_steps >= self.onset:
            trainee.settings["learning_rate"] *= self.factor


class RateTooHigh(Family):
    name: ClassVar[str] = "pretraining.lr_too_high"
    kind: ClassVar[Kind] = "pretraining"

    def draw(self, rng: Random, onset: int) -> Rate:
        return Rate(onset, factor=log_uniform(rng, 5, 50))
