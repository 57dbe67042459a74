"""A weight decay with the wrong sign."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from oven_learner.gym.fault import Case, Family

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Growing(Case):
    onset: int
    growth: float
    """Of the weights, in units of the learning rate."""

    def settings(self, trainee: Trainee) -> None:
        if trainee.gradient_steps >= self.onset:
            trainee.settings["weight_decay"] = -self.growth


class GrowingWeights(Family):
    """The optimizer's kernel is written anew, and the sign of the decoupled decay is lost on the way: each step makes
    all weights a little larger. In units of the learning rate it looks small. Behind a normalisation that is nothing
    but a shorter step; in the output layer it makes the model surer than it has reason to be, more so with each step,
    and it ends when somebody wonders at the norm of the weights."""

    name = "pretraining.growing_weights"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Growing:
        return Growing(onset, 10 ** rng.uniform(0.3, 1.15))
