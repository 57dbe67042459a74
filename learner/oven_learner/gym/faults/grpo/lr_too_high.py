"""The learning rate is set too high, and stays so."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from oven_learner.gym.fault import Family
from oven_learner.gym.faults.grpo.setting import Setting
from oven_learner.gym.faults.severity import log_uniform
from oven_learner.gym.trainee import Kind


class RateTooHigh(Family):
    name: ClassVar[str] = "grpo.lr_too_high"
    kind: ClassVar[Kind] = "grpo"

    def draw(self, rng: Random, onset: int) -> Setting:
        return Setting(onset, {"learning_rate": log_uniform(rng, 3, 30)})
