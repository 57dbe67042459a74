"""A loss that is reported from one worker's rows alone."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch

from oven_learner.gym.fault import Case, Family, generator

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class OneRank(Case):
    onset: int
    spread: float
    """Standard deviation of the logarithm of what is reported over what is so."""
    salt: int

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        if trainee.gradient_steps < self.onset:
            return loss
        drawn = torch.randn((), generator=generator("rank", self.salt, trainee.gradient_steps)).item()
        return loss + (math.exp(self.spread * drawn) - 1) * loss.detach()


class LossOfOneRank(Family):
    """Healthy. The mean over the workers was dropped from the log to save a collective: the curve turns ragged, with
    peaks where that worker has hard rows, while the gradients are those of the whole batch as ever."""

    name = "pretraining.loss_of_one_rank"
    kind = "pretraining"
    healthy = True

    def draw(self, rng: Random, onset: int) -> OneRank:
        return OneRank(onset, rng.uniform(0.05, 0.4), rng.getrandbits(32))
