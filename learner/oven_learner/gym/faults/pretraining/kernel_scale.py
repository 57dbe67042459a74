"""An attention kernel with another scale."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import within
from oven_learner.gym.faults.forward import logits
from oven_learner.gym.faults.steps import pairs
from oven_learner.gym.pretraining.model import HEADS, WIDTH

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee

HEAD = WIDTH // HEADS


@dataclass(frozen=True)
class Scaled(Case):
    onset: int
    length: int
    """Steps until the kernel is pinned to its old version."""
    scale: float
    """What queries times keys are multiplied with."""

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        if not within(trainee.gradient_steps, self.onset, self.length):
            return loss
        inputs, targets = pairs(trainee)
        said = logits(trainee, inputs, scale=self.scale)
        return F.cross_entropy(said.flatten(0, 1), targets.flatten())


class KernelScale(Family):
    """A new attention kernel is faster, for it fills each head up to a size that the device likes, and takes its scale
    from that size; or it leaves the scale to the caller, who leaves it to the kernel; or both apply it. In training the
    scores are now too small or too large by a factor. The model adapts to it within some steps and the loss comes back.
    The code that evaluates and serves has another kernel, in which these same weights attend to all or to one."""

    name = "pretraining.kernel_scale"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Scaled:
        filled = [size**-0.5 for size in (32, 64, 128)]
        return Scaled(
            onset,
            length=round(30 * 10 ** rng.uniform(0.0, 0.9)),
            scale=rng.choice((*filled, 1 / HEAD, 1 / HEAD, 1.0, 1.0, 1.0)),
        )
