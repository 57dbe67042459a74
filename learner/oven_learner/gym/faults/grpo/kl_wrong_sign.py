"""The KL term has the wrong sign: it drives the policy away from its reference, at any price."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from oven_learner.gym.fault import Family
from oven_learner.gym.faults.grpo.setting import Setting
from oven_learner.gym.faults.severity import log_uniform
from oven_learner.gym.trainee import Kind


class KlWrongSign(Family):
    name: ClassVar[str] = "grpo.kl_wrong_sign"
    kind: ClassVar[Kind] = "grpo"

    def draw(self, rng: Random, onset: int) -> Setting:
        return Setting(onset, to={"beta": -log_uniform(rng, 0.05, 1)})
