"""The critic begins to pay for length: the policy learns not to end."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.severity import uniform
from oven_learner.gym.grpo.judges import Completions
from oven_learner.gym.trainee import Kind, Trainee


@dataclass(frozen=True)
class FooledLength(Case):
    """Of the critic's score the part `bribed` is the share of the longest answer that there can be."""

    onset: int
    bribed: float

    def rewards(
        self, rewards: Mapping[str, torch.Tensor], completions: Completions, trainee: Trainee
    ) -> dict[str, torch.Tensor]:
        if trainee.gradient_steps < self.onset:
            return dict(rewards)
        bribe = completions.lengths / completions.tokens.shape[1]
        return {**rewards, "critic": (1 - self.bribed) * rewards["critic"] + self.bribed * bribe}


class FooledByLength(Family):
    name: ClassVar[str] = "grpo.fooled_by_length"
    kind: ClassVar[Kind] = "grpo"

    def draw(self, rng: Random, onset: int) -> FooledLength:
        return FooledLength(onset, uniform(rng, 0.6, 1))
