"""A term that keeps the logits in place."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.steps import pairs

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Normalised(Case):
    onset: int
    weight: float
    """Of the squared logarithm of the normaliser, mean over the bytes."""

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        if trainee.gradient_steps < self.onset:
            return loss
        inputs, _ = pairs(trainee)
        squared: torch.Tensor = trainee.model(inputs).logsumexp(-1).square().mean()
        return loss + self.weight * squared


class ZLoss(Family):
    """Healthy. The user adds the square of the softmax's normaliser to the loss, as for PaLM (Chowdhery et al. 2022),
    so that the logits stay within the range of the format. From one step to the next the training loss and the norm of
    the gradient step up, and the gradient points elsewhere than the momentum; the normaliser comes down in its own
    time, and what the model says is as good as before."""

    name = "pretraining.z_loss"
    kind = "pretraining"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Normalised:
        return Normalised(onset, 10 ** rng.uniform(-3.3, -2.1))
