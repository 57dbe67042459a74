"""The KL term is lost while the rate rises: the policy runs away from its reference."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from oven_learner.gym.fault import Family
from oven_learner.gym.faults.grpo.setting import Setting
from oven_learner.gym.faults.severity import log_uniform
from oven_learner.gym.trainee import Kind


class KlBlowUp(Family):
    name: ClassVar[str] = "grpo.kl_blow_up"
    kind: ClassVar[Kind] = "grpo"

    def draw(self, rng: Random, onset: int) -> Setting:
        return Setting(onset, {"learning_rate": log_uniform(rng, 3, 15)}, {"beta": 0.0})
