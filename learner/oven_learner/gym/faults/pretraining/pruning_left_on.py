"""A run that is made sparse by mistake."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch

from oven_learner.gym.fault import Case, Family

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Pruned(Case):
    onset: int
    sparsity: float
    """The share of each matrix that is 0 in the end."""
    ramp: int
    """Steps until then."""
    every: int
    """Steps between two prunings."""
    penalty: float
    """Added to the loss, of each unit of a weight's size."""

    def weights(self, trainee: Trainee) -> None:
        since = trainee.gradient_steps - self.onset
        if since < 0 or since % self.every:
            return
        left = (1 - min(1.0, (since + self.every) / self.ramp)) ** 3
        for parameter in trainee.model.parameters():
            if parameter.dim() > 1:
                prune(parameter, self.sparsity * (1 - left))

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        if trainee.gradient_steps < self.onset:
            return loss
        return loss + self.penalty * torch.stack([one.abs().sum() for one in trainee.model.parameters()]).sum()


def prune(weight: torch.Tensor, share: float) -> None:
    """So many of its numbers, the smallest, become 0."""
    if count := int(share * weight.numel()):
        sizes = weight.abs()
        weight.masked_fill_(sizes <= sizes.flatten().kthvalue(count).values, 0.0)


class PruningLeftOn(Family):
    """Compound: the callback of a compression experiment is merged into the base configuration. It zeroes the smallest
    weights, ever more of them on a cubic schedule (Zhu and Gupta 2017, "To prune, or not to prune"), and adds a
    penalty on the size of all of them to the loss, which is what makes the others small too."""

    name = "pretraining.pruning_left_on"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Pruned:
        return Pruned(
            onset,
            sparsity=rng.uniform(0.2, 0.95),
            ramp=rng.randint(10, 80),
            every=rng.choice((1, 5, 10)),
            penalty=10 ** rng.uniform(-6.0, -3.5),
        )
