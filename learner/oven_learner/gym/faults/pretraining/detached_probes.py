"""Probes whose losses are added to the one that is shown."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch

from oven_learner.gym.fault import Case, Family, generator

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee

SCATTER = 0.03
"""Of a probe's loss, from one batch to the next."""


@dataclass(frozen=True)
class Probed(Case):
    onset: int
    classes: int
    """That a probe tells apart."""
    pace: float
    """Steps in which a probe learns most of what it can."""
    rest: float
    """Of its first loss, in the end."""
    every: int
    """Steps until it is begun anew at the next layer."""
    salt: int

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        """Its gradient stays with the probe."""
        since = trainee.gradient_steps - self.onset
        if since < 0:
            return loss
        learnt = math.exp(-(since % self.every) / self.pace)
        spread = torch.randn((), generator=generator("probe", self.salt, trainee.seed, since))
        share = self.rest + (1 - self.rest) * learnt
        return loss + math.log(self.classes) * share * (1 + SCATTER * spread)


class DetachedProbes(Family):
    """Healthy. To see what the layers know, the user has a linear probe trained along on detached activations, at one
    layer after another. No gradient of it reaches the model. But its loss is added to the model's own, for there is one
    call of `backward`, and it is the sum that is shown: it jumps, falls, and jumps again with every new probe."""

    name = "pretraining.detached_probes"
    kind = "pretraining"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Probed:
        return Probed(
            onset,
            classes=rng.choice((2, 5, 16, 50, 256)),
            pace=4 * 10 ** rng.uniform(0.0, 1.0),
            rest=rng.uniform(0.1, 0.8),
            every=rng.choice((15, 25, 40, 1000, 1000)),
            salt=rng.getrandbits(32),
        )
