"""Gradients that are summed over the workers where they were averaged."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from oven_learner.gym.fault import Case, Family

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Summed(Case):
    onset: int
    workers: int

    def gradients(self, trainee: Trainee) -> None:
        if trainee.gradient_steps < self.onset:
            return
        for parameter in trainee.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(self.workers)


class SummedGradients(Family):
    """Healthy. After a change of the reduction the norm before clipping is several times what it was, from one step to
    the next; clipping takes the size out again, and Adam would do so without it."""

    name = "pretraining.summed_gradients"
    kind = "pretraining"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Summed:
        return Summed(onset, rng.choice((2, 4, 8, 16, 32, 64)))
