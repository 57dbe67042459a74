"""What is left of another algorithm in the loss."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import within
from oven_learner.gym.faults.credit import credited

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Leftover(Case):
    onset: int
    length: int
    """Steps until the two are taken out."""
    discount: float
    """Of the credit, for each token that stands behind."""
    price: float
    """Of a nat by which a token is likelier than to the reference, in its credit."""

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        if not within(trainee.gradient_steps, self.onset, self.length):
            return loss
        step = credited(trainee, self)
        gap = step.log_probs.detach() - step.reference
        return step.loss(step.credit * self.discount ** behind(step.mask) - self.price * gap)


def behind(mask: Tensor) -> Tensor:
    """Int64 [N]: how many tokens of its answer stand behind each of the tokens of a mask [B, ANSWER]."""
    count = mask.sum(1, keepdim=True) - mask.cumsum(1)
    return count[mask]


class OtherAlgorithm(Family):
    """Compound: the trainer is moved to a library that grew up with PPO, and two of its defaults stay on. The reward
    comes with the last token and is discounted on its way to the front, so that the first tokens of an answer, on which
    all depends, have little credit; and the distance to the reference is taken out of every token's reward, while it is
    also in the loss. Each alone would be borne. The rewards that are shown are the judges' own, and rise more slowly or
    go back to where the reference was."""

    name = "grpo.other_algorithm"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Leftover:
        return Leftover(
            onset,
            length=round(30 * 10 ** rng.uniform(0.0, 0.8)),
            discount=rng.choice((0.3, 0.5, 0.7, 0.9, 0.95)),
            price=10 ** rng.uniform(-1.7, 0.3),
        )
