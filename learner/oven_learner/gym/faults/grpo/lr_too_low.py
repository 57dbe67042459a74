"""The learning rate is too low from the start: the run crawls."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from oven_learner.gym.fault import Family
from oven_learner.gym.faults.grpo.setting import Setting
from oven_learner.gym.faults.severity import log_uniform
from oven_learner.gym.trainee import Kind


class RateTooLow(Family):
    name: ClassVar[str] = "grpo.lr_too_low"
    kind: ClassVar[Kind] = "grpo"

    def draw(self, rng: Random, onset: int) -> Setting:
        return Setting(0, {"learning_rate": 1 / log_uniform(rng, 3, 100)})
