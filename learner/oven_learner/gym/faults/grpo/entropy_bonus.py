"""A bonus for entropy that is larger than what it should help."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.grpo.task import LEVELS, draw

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee

PROMPTS = 64
"""That the entropy is measured on."""


@dataclass(frozen=True)
class Bonus(Case):
    onset: int
    coefficient: float
    """Of the mean entropy of a token."""
    salt: int

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        if trainee.gradient_steps < self.onset:
            return loss
        return loss - self.coefficient * entropy(trainee, generator("entropy", self.salt, trainee.gradient_steps))


def entropy(trainee: Trainee, draws: torch.Generator) -> torch.Tensor:
    """Nats a token of what the policy answers itself, with its gradient."""
    prompts = draw(PROMPTS, dict.fromkeys(LEVELS, 1.0), draws)
    answers = trainee.model.sample(prompts.digits, 1.0, draws)  # type: ignore[operator]
    distribution: torch.Tensor = trainee.model(prompts.digits, answers)
    return -(distribution.exp() * distribution).sum(-1).mean()


class EntropyBonus(Family):
    """Against a collapse of the entropy somebody adds a bonus for it, with the coefficient of a recipe for games, whose
    returns are of another size. Language has far more wrong tokens than right ones: the bonus pays for all of them
    (Cui et al. 2025, "The Entropy Mechanism of Reinforcement Learning for Reasoning Language Models", find that such a
    bonus does little at one value and lets entropy explode at the next)."""

    name = "grpo.entropy_bonus"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Bonus:
        return Bonus(onset, 10 ** rng.uniform(-1.7, 0.1), rng.getrandbits(32))
