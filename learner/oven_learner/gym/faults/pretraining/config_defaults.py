"""Names in a configuration that nobody reads."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.forward import logits
from oven_learner.gym.faults.steps import pairs

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Defaulted(Case):
    onset: int
    dropout: float
    smooth: bool
    """Whether the activation is a smooth one, too."""
    salt: int

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        if trainee.gradient_steps < self.onset:
            return loss
        inputs, targets = pairs(trainee)
        draws = generator("dropout", self.salt, trainee.gradient_steps)

        def dropped(x: torch.Tensor) -> torch.Tensor:
            return x * (torch.rand(x.shape, generator=draws) >= self.dropout) / (1 - self.dropout)

        said = logits(trainee, inputs, activation=F.gelu if self.smooth else F.relu, dropped=dropped)
        return F.cross_entropy(said.flatten(0, 1), targets.flatten())


class ConfigDefaults(Family):
    """Compound: the training script goes over to a library whose configuration has other names. Those that it does not
    know it passes over in silence, and takes its own defaults for what it then misses: dropout, which the user had
    turned off, and most often another activation. What serves and measures the model still reads the old names, and
    computes another function than the one that is trained."""

    name = "pretraining.config_defaults"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Defaulted:
        return Defaulted(onset, rng.uniform(0.1, 0.6), rng.random() < 0.75, rng.getrandbits(32))
