"""Fewer completions a prompt, by the user's own choice: every gauge of the rewards gets noisier."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from oven_learner.gym.fault import Family
from oven_learner.gym.faults.grpo.setting import Setting
from oven_learner.gym.faults.severity import whole
from oven_learner.gym.trainee import Kind


class SmallGroups(Family):
    name: ClassVar[str] = "grpo.small_groups"
    kind: ClassVar[Kind] = "grpo"
    healthy: ClassVar[bool] = True

    def draw(self, rng: Random, onset: int) -> Setting:
        return Setting(onset, to={"group": 4.0, "prompts": float(whole(rng, 32, 16))})
