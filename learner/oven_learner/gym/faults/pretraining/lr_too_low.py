"""The learning rate is set too low, from the first step of the run or from the onset on."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from oven_learner.gym.fault import Family
from oven_learner.gym.faults.pretraining.lr_too_high import Rate
from oven_learner.gym.faults.severity import log_uniform
from oven_learner.gym.trainee import Kind


class RateTooLow(Family):
    name: ClassVar[str] = "pretraining.lr_too_low"
    kind: ClassVar[Kind] = "pretraining"

    def draw(self, rng: Random, onset: int) -> Rate:
        return Rate(onset * rng.getrandbits(1), factor=1 / log_uniform(rng, 10, 100))
