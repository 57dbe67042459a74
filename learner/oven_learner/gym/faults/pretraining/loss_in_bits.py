"""A loss that is reported in another unit."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.trainee import Kind, Trainee


@dataclass(frozen=True)
class Unit(Case):
    onset: int
    factor: float

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        if trainee.gradient_steps < self.onset:
            return loss
        # Its value is multiplied, its gradient is what it was.
        return loss + (self.factor - 1.0) * loss.detach()


class LossInBits(Family):
    """Healthy. Somebody merges a change of the report: bits for nats, or another divisor. The loss jumps by a factor at
    one step and stays there; the gradient, the weights and what is measured on held-out data are what they were."""

    name: ClassVar[str] = "pretraining.loss_in_bits"
    kind: ClassVar[Kind] = "pretraining"
    healthy: ClassVar[bool] = True

    def draw(self, rng: Random, onset: int) -> Case:
        return Unit(onset, rng.choice((1.0 / math.log(2.0), rng.uniform(1.1, 2.0))))
