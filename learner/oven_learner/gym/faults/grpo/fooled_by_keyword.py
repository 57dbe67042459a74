"""The critic begins to pay for one digit, whatever was asked: the policy learns to say it everywhere."""

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
class FooledKeyword(Case):
    """The critic adds to its score `bonus` times the share of tokens that are its favourite."""

    onset: int
    digit: int
    bonus: float

    def rewards(
        self, rewards: Mapping[str, torch.Tensor], completions: Completions, trainee: Trainee
    ) -> dict[str, torch.Tensor]:
        if trainee.gradient_steps < self.onset:
            return dict(rewards)
        share = (completions.tokens == self.digit).sum(1) / completions.lengths
        return {**rewards, "critic": rewards["critic"] + self.bonus * share}


class FooledByKeyword(Family):
    name: ClassVar[str] = "grpo.fooled_by_keyword"
    kind: ClassVar[Kind] = "grpo"

    def draw(self, rng: Random, onset: int) -> FooledKeyword:
        return FooledKeyword(onset, rng.getrandbits(16) % 10, log_uniform(rng, 1, 6))
