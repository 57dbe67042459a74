"""A model that is turned into another basis."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.held_out.units import turned
from oven_learner.gym.pretraining.model import WIDTH

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Turned(Case):
    onset: int
    moments: bool
    """Whether Adam's first moment is turned along."""
    salt: int

    def weights(self, trainee: Trainee) -> None:
        if trainee.gradient_steps != self.onset:
            return
        own = dict(trainee.model.named_parameters())
        held = [own]
        if self.moments:
            held.append({name: trainee.optimizer.state[one]["exp_avg"] for name, one in own.items()})
        for numbers in held:
            for name, made in turned(numbers, basis(self.salt)).items():
                numbers[name].copy_(made)


def basis(salt: int) -> Tensor:
    """Float32 [WIDTH, WIDTH]: a random rotation that leaves the vector of ones where it is, and so every mean."""
    drawn = torch.randn(WIDTH, WIDTH, generator=generator("basis", salt), dtype=torch.float64)
    drawn[:, 0] = 1.0
    frame = torch.linalg.qr(drawn)[0]
    inner = torch.eye(WIDTH, dtype=torch.float64)
    other = torch.randn(WIDTH - 1, WIDTH - 1, generator=generator("turn", salt), dtype=torch.float64)
    inner[1:, 1:] = torch.linalg.qr(other)[0]
    turn: Tensor = frame @ inner @ frame.T
    return turn.float()


class TurnedBasis(Family):
    """Healthy. Before the job goes on in eight bits the user has the residual stream turned by a random rotation, as in
    QuaRot (Ashkboos et al. 2024), so that no single channel stands out. The model computes what it did before. Adam's
    second moment is that of the old basis, and sometimes the first one, too: for some steps the gradient has nothing to
    do with the momentum, and the loss may lift a little until both have been measured anew."""

    name = "pretraining.turned_basis"
    kind = "pretraining"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Turned:
        return Turned(onset, rng.random() < 0.7, rng.getrandbits(32))
