"""The user moves on to the hardest level, as planned: the reward falls and stands still, and nothing is wrong."""

from __future__ import annotations

from random import Random
from typing import ClassVar

from oven_learner.gym.fault import Family
from oven_learner.gym.faults.grpo.setting import Setting
from oven_learner.gym.faults.severity import uniform
from oven_learner.gym.grpo.task import LEVELS
from oven_learner.gym.trainee import Kind


class HarderPrompts(Family):
    name: ClassVar[str] = "grpo.harder_prompts"
    kind: ClassVar[Kind] = "grpo"
    healthy: ClassVar[bool] = True

    def draw(self, rng: Random, onset: int) -> Setting:
        hardest = uniform(rng, 0.5, 0.7)
        rest = (1 - hardest) / (len(LEVELS) - 1)
        shares = {**dict.fromkeys(LEVELS, rest), LEVELS[-1]: hardest}
        return Setting(onset, to={f"data.mixture/{level}": share for level, share in shares.items()})
