"""A group in which each answer has a temperature of its own."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.answers import answered
from oven_learner.gym.grpo.policy import Policy

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Ladder(Case):
    onset: int
    low: float
    high: float
    """The first and the last answer's temperature, over the one that is set."""
    salt: int

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        if trainee.gradient_steps < self.onset:
            return rewards
        digits = completions.prompts.digits
        rungs = trainee.settings["temperature"] * ladder(self.low, self.high, completions.group)
        each = cast(float, rungs.repeat(len(digits) // completions.group).unsqueeze(1))  # [B, 1], by which it divides
        draws = generator("ladder", self.salt, trainee.seed, trainee.gradient_steps)
        return answered(completions, cast(Policy, trainee.model).sample(digits, each, draws), trainee)


def ladder(low: float, high: float, group: int) -> Tensor:
    """Float32 [group], each as many times the one before it."""
    return torch.logspace(0, 1, group, base=high / low) * low


class TemperatureLadder(Family):
    """Healthy. So that every group has both safe and daring answers, the user gives each of its places a temperature of
    its own, from a low one to a high one. From one step to the next the mean reward and the form are worse, the spread
    is wider and the answers' length scatters, for some of them are daring. The policy learns as well from them."""

    name = "grpo.temperature_ladder"
    kind = "grpo"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Ladder:
        return Ladder(onset, rng.uniform(0.6, 0.95), rng.uniform(1.1, 1.35), rng.getrandbits(32))
