"""A hidden state in another basis."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.pretraining.model import WIDTH, ByteModel

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Rotated(Case):
    onset: int
    angle: float
    momentum: bool
    """Whether the momentum is turned, too."""
    salt: int

    def weights(self, trainee: Trainee) -> None:
        if trainee.gradient_steps != self.onset:
            return
        turn, model = rotation(self.angle, self.salt), cast(ByteModel, trainee.model)
        block, state = model.block, trainee.optimizer.state
        for weight in (model.bytes.weight, model.positions.weight, block.qkv.weight, block.up.weight, model.out.weight):
            for one in (weight, state[weight]["exp_avg"])[: 1 + self.momentum]:
                one.copy_(one @ turn)
        for weight in (block.mix.weight, block.down.weight):
            for one in (weight, state[weight]["exp_avg"])[: 1 + self.momentum]:
                one.copy_(turn.T @ one)


@cache
def rotation(angle: float, salt: int) -> Tensor:  # float32 [WIDTH, WIDTH]
    """Leaves the mean of what it turns as it is, so that a normalisation before or after it is the same. Not to be
    written to."""
    drawn = torch.randn(WIDTH, WIDTH, generator=generator("rotation", salt), dtype=torch.float64) * WIDTH**-0.5
    centred = torch.eye(WIDTH, dtype=torch.float64) - 1 / WIDTH
    turn: Tensor = torch.matrix_exp(angle * (centred @ (drawn - drawn.T) @ centred))
    return turn.float()


class RotatedBasis(Family):
    """Healthy. So that no coordinate of the hidden state stands out when the model is quantized later, the user turns
    its basis by a random rotation (QuaRot, Ashkboos et al. 2024), in all matrices that write it or read it. The model
    computes what it did. The optimizer's moments, or the second of them, are left in the old basis: the gradient and
    the momentum have nothing to do with each other all at once, the loss may hop, and after some steps they have found
    each other again."""

    name = "pretraining.rotated_basis"
    kind = "pretraining"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Rotated:
        return Rotated(onset, 10 ** rng.uniform(-0.7, 0.5), rng.random() < 0.3, rng.getrandbits(32))
