"""The sampler runs at too low a temperature, and nothing corrects for it: the policy sharpens what it already says."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from oven_learner.gym.fault import Family
from oven_learner.gym.faults.grpo.setting import Setting
from oven_learner.gym.faults.severity import uniform
from oven_learner.gym.trainee import Kind


class ColdSampling(Family):
    name: ClassVar[str] = "grpo.cold_sampling"
    kind: ClassVar[Kind] = "grpo"

    def draw(self, rng: Random, onset: int) -> Setting:
        return Setting(onset, to={"temperature": uniform(rng, 0.6, 0.05)})
