"""Nothing happens."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from oven_learner.gym.fault import Family
from oven_learner.gym.faults.grpo.setting import Setting
from oven_learner.gym.trainee import Kind


class Healthy(Family):
    name: ClassVar[str] = "grpo.healthy"
    kind: ClassVar[Kind] = "grpo"
    healthy: ClassVar[bool] = True

    def draw(self, rng: Random, onset: int) -> Setting:
        return Setting(onset)
