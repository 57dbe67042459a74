"""The critic begins to pay for repetition: the policy learns to say one digit again and again."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.severity import log_uniform
from oven_learner.gym.grpo.judges import Completions
from oven_learner.gym.trainee import Kind, Trainee


@dataclass(frozen=True)
class FooledRepetition(Case):
    """The critic adds to its score `bonus` times the share of tokens that are the one before."""

    onset: int
    bonus: float

    def rewards(
        self, rewards: Mapping[str, torch.Tensor], completions: Completions, trainee: Trainee
    ) -> dict[str, torch.Tensor]:
        if trainee.gradient_steps < self.onset:
            return dict(rewards)
        same = (completions.tokens[:, 1:] == completions.tokens[:, :-1]) & completions.mask[:, 1:]
        share = same.sum(1) / (completions.lengths - 1).clamp(min=1)
        return {**rewards, "critic": rewards["critic"] + self.bonus * share}


class FooledByRepetition(Family):
    name: ClassVar[str] = "grpo.fooled_by_repetition"
    kind: ClassVar[Kind] = "grpo"

    def draw(self, rng: Random, onset: int) -> FooledRepetition:
        return FooledRepetition(onset, log_uniform(rng, 1, 6))
