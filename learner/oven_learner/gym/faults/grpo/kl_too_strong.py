"""The weight of the KL term is set too high from the start: the policy may not leave its habits."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from oven_learner.gym.fault import Family
from oven_learner.gym.faults.grpo.setting import Setting
from oven_learner.gym.faults.severity import log_uniform
from oven_learner.gym.trainee import Kind


class KlTooStrong(Family):
    name: ClassVar[str] = "grpo.kl_too_strong"
    kind: ClassVar[Kind] = "grpo"

    def draw(self, rng: Random, onset: int) -> Setting:
        return Setting(0, to={"beta": log_uniform(rng, 0.1, 2)})
