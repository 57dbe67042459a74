"""The loss, or one number of the gradient, is NaN for some steps: one is enough to break the weights for good."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.severity import whole
from oven_learner.gym.trainee import Kind, Trainee


@dataclass(frozen=True)
class Broken(Case):
    onset: int
    length: int
    """Gradient steps: going back within them is no help."""
    in_loss: bool

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        return loss * math.nan if self.in_loss and self._now(trainee) else loss

    def gradients(self, trainee: Trainee) -> None:
        if not self.in_loss and self._now(trainee):
            gradient = next(iter(trainee.model.parameters())).grad
            assert gradient is not None
            gradient.view(-1)[0] = math.nan

    def _now(self, trainee: Trainee) -> bool:
        return self.onset <= trainee.gradient_steps < self.onset + self.length


class NotANumber(Family):
    name: ClassVar[str] = "pretraining.not_a_number"
    kind: ClassVar[Kind] = "pretraining"

    def draw(self, rng: Random, onset: int) -> Broken:
        return Broken(onset, whole(rng, 1, 20), in_loss=bool(rng.getrandbits(1)))
