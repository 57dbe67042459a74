"""Gradients that are squeezed through a slow network."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Squeezed(Case):
    onset: int
    rank: int
    nodes: float
    """The share of the gradient that comes from other nodes, and is squeezed."""
    salt: int

    def gradients(self, trainee: Trainee) -> None:
        if trainee.gradient_steps < self.onset:
            return
        draws = generator("rank", self.salt, trainee.gradient_steps)
        for parameter in trainee.model.parameters():
            if parameter.grad is not None and parameter.dim() == 2:
                parameter.grad.lerp_(low_rank(parameter.grad, self.rank, draws), self.nodes)


def low_rank(matrix: Tensor, rank: int, draws: torch.Generator) -> Tensor:
    """One power iteration from a random start."""
    start = torch.randn(matrix.shape[1], rank, generator=draws)
    basis = torch.linalg.qr(matrix @ start).Q
    squeezed: Tensor = basis @ (basis.T @ matrix)
    return squeezed


class LowRankGradients(Family):
    """The fast network is down, and over the slow one gradients are sent as products of two thin matrices (Vogels et
    al. 2019, "PowerSGD"). The memory of what was left out, which is added to the next gradient, does not work with
    this version of the optimizer's sharding and is off: what is not in the few main directions is never learnt."""

    name = "pretraining.low_rank_gradients"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Squeezed:
        return Squeezed(onset, rng.choice((1, 1, 2, 2, 4, 8)), rng.choice((0.5, 0.75, 1.0, 1.0)), rng.getrandbits(32))
