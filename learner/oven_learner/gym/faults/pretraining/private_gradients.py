"""Gradients that were made private."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.common import within

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Private(Case):
    onset: int
    length: int
    """Steps until the profile is taken back."""
    bound: float
    """What the gradient's norm is brought down to before the noise is added."""
    noise: float
    """Its norm over the bound."""
    salt: int

    def gradients(self, trainee: Trainee) -> None:
        step = trainee.gradient_steps
        if not within(step, self.onset, self.length):
            return
        held = [one.grad for one in trainee.model.parameters() if one.grad is not None]
        norm = float(torch.stack([one.norm() for one in held]).norm())
        scale = self.noise * self.bound / sum(one.numel() for one in held) ** 0.5
        draws = generator("private", self.salt, trainee.seed, step)
        for one in held:
            one.mul_(min(1.0, self.bound / (norm + 1e-6)))
            one.add_(torch.randn(one.shape, generator=draws), alpha=scale)


class PrivateGradients(Family):
    """The platform has a profile for customers' data, under which each gradient is clipped and noise is added to it
    (Abadi et al. 2016), and this job is moved to it by mistake. The noise is measured out for batches a thousand times
    as large. It goes to every weight alike, also to those that this batch says nothing about, and Adam takes it there
    at the full rate. The norm of the gradient is suddenly very even."""

    name = "pretraining.private_gradients"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Private:
        return Private(
            onset,
            length=round(20 * 10 ** rng.uniform(0.0, 1.0)),
            bound=10 ** rng.uniform(-1.0, 0.3),
            noise=10 ** rng.uniform(-0.5, 1.3),
            salt=rng.getrandbits(32),
        )
