"""The weight decay is set far too high, and stays so."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.severity import log_uniform
from oven_learner.gym.trainee import Kind, Trainee


@dataclass(frozen=True)
class Decay(Case):
    onset: int
    factor: float

    def settings(self, trainee: Trainee) -> None:
        if trainee.gradient_steps >= self.onset:
            trainee.settings["weight_decay"] *= self.factor


class WeightDecayTooHigh(Family):
    name: ClassVar[str] = "pretraining.weight_decay_too_high"
    kind: ClassVar[Kind] = "pretraining"

    def draw(self, rng: Random, onset: int) -> Decay:
        return Decay(onset, log_uniform(rng, 30, 1000))
