"""A loss that is taken a little uphill."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.func import functional_call
from torch.nn import functional as F

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.steps import pairs

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Uphill(Case):
    onset: int
    radius: float
    """Norm of the way up."""

    def loss(self, loss: Tensor, trainee: Trainee) -> Tensor:
        if trainee.gradient_steps < self.onset:
            return loss
        inputs, targets = pairs(trainee)
        return F.cross_entropy(uphill(trainee.model, loss, self.radius, inputs).flatten(0, 1), targets.flatten())


def uphill(model: torch.nn.Module, loss: Tensor, radius: float, tokens: Tensor) -> Tensor:
    """Logits of the model whose weights went so far along the gradient of the loss."""
    named = dict(model.named_parameters())
    slopes = torch.autograd.grad(loss, list(named.values()), retain_graph=True)
    norm = torch.stack([slope.norm() for slope in slopes]).norm() + 1e-12
    moved = {name: one + radius * slope / norm for (name, one), slope in zip(named.items(), slopes, strict=True)}
    said: Tensor = functional_call(model, moved, (tokens,))
    return said


class SharpnessAware(Family):
    """Healthy. The user turns on sharpness-aware minimisation (Foret et al. 2021, arXiv:2010.01412): each gradient is
    taken a little uphill of the weights. The loss that is reported is that of the place uphill, so it steps up in one
    step and stays above the old curve, and so does the norm of the gradient. The model itself learns as before."""

    name = "pretraining.sharpness_aware"
    kind = "pretraining"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Uphill:
        return Uphill(onset, 10 ** rng.uniform(-1.8, -1.25))
