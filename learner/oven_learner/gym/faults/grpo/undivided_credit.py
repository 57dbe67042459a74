"""Credit that is not divided by the spread of the group."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.credit import credited

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Undivided(Case):
    onset: int
    scale: float
    """What the difference to the group's mean is multiplied by."""

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        if trainee.gradient_steps < self.onset:
            return loss
        step = credited(trainee, self)
        differences = self.scale * (step.rewards - step.rewards.mean(1, keepdim=True))
        return step.loss(differences.view(-1, 1).expand(step.mask.shape)[step.mask])


class UndividedCredit(Family):
    """Healthy. The user has read that to divide by a group's deviation favours prompts that are nearly always or nearly
    never answered right (Liu et al. 2025, arXiv:2503.20783), and leaves the division out, with some factor in its
    place. From one step to the next the loss and the gradient are of another size, a fraction of what they were, as if
    most of the learning signal had been lost. Adam takes steps as large as before, and the policy learns as well."""

    name = "grpo.undivided_credit"
    kind = "grpo"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Undivided:
        return Undivided(onset, scale=rng.uniform(2.5, 6.0))
