"""Steps whose parts are added up and not divided."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch

from oven_learner.gym.fault import Case, Family, generator

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Uneven(Case):
    onset: int
    every: float
    """Batches between two ends of a shard, on average."""
    parts: int
    """At most, of one step."""
    salt: int

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        if trainee.cursor < self.onset:
            return loss
        draws = generator("accumulated", self.salt, trainee.cursor)
        if float(torch.rand(1, generator=draws)) * self.every >= 1.0:
            return loss
        return loss * int(torch.randint(2, self.parts + 1, (1,), generator=draws))


class UnevenAccumulation(Family):
    """Healthy. Where a shard of the data ends, the last step is made of fewer parts than the loop counts on, and what
    they were to be divided by is left out: loss and norm are a multiple of their neighbours' for this one step, the
    direction is right, and clipping takes the size out again."""

    name = "pretraining.uneven_accumulation"
    kind = "pretraining"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Uneven:
        return Uneven(onset, rng.uniform(5.0, 30.0), rng.choice((2, 4, 8, 16, 64)), rng.getrandbits(32))
