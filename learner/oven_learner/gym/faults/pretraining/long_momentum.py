"""A momentum that remembers for too long."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from oven_learner.gym.fault import Case, Family

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Long(Case):
    onset: int
    momentum: float
    """The decay of the first moments."""

    def settings(self, trainee: Trainee) -> None:
        if trainee.gradient_steps >= self.onset:
            group = trainee.optimizer.param_groups[0]
            group["betas"] = (self.momentum, group["betas"][1])


class LongMomentum(Family):
    """A file of settings is tidied up, and a momentum that was found for a run of a million small steps comes to one of
    few large ones. The first moments follow the gradient late, and their correction for the bias is that of an average
    which is still young, though it is full: the steps are too long for some time, and then go on past every turn."""

    name = "pretraining.long_momentum"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Long:
        return Long(onset, 1 - 10 ** rng.uniform(-3.0, -1.3))
