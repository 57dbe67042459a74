"""A few gradients are far too large and point anywhere: half of the users clip, half do not.

Clipped at the user's norm such a gradient is no larger than others. Unclipped it fills Adam's second moment, which
keeps updates tiny for long after.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.severity import log_uniform, whole
from oven_learner.gym.trainee import Kind, Trainee

UNCLIPPED = 1e9


@dataclass(frozen=True)
class Outlier(Case):
    onset: int
    length: int
    """Gradient steps."""
    factor: float
    """Times the norm of the gradient that was due."""
    clipped: bool
    seed: int

    def settings(self, trainee: Trainee) -> None:
        if not self.clipped and trainee.gradient_steps >= self.onset:
            trainee.settings["clip"] = UNCLIPPED

    def gradients(self, trainee: Trainee) -> None:
        if not self.onset <= trainee.gradient_steps < self.onset + self.length:
            return
        drawn = generator("outlier", self.seed, trainee.gradient_steps)
        found = [parameter.grad for parameter in trainee.model.parameters() if parameter.grad is not None]
        thrown = [torch.randn(gradient.shape, generator=drawn) for gradient in found]
        norms = [torch.linalg.vector_norm(torch.stack(torch._foreach_norm(side))) for side in (found, thrown)]
        for gradient, noise in zip(found, thrown, strict=True):
            gradient.copy_(noise * (self.factor * norms[0] / norms[1]))


class OutlierGradient(Family):
    name: ClassVar[str] = "pretraining.outlier_gradient"
    kind: ClassVar[Kind] = "pretraining"

    def draw(self, rng: Random, onset: int) -> Outlier:
        clipped = bool(rng.getrandbits(1))
        return Outlier(onset, whole(rng, 1, 3), log_uniform(rng, 300, 10_000), clipped, rng.getrandbits(32))
