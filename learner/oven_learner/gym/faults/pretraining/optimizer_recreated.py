"""An optimizer that is built anew within the training loop."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.shard import moments
from oven_learner.gym.trainee import Kind, Trainee

FORGOTTEN = 1e-6
"""What is left of a momentum: no weight in the next, but a direction, so that no measure of it is 0 / 0."""


@dataclass(frozen=True)
class Recreation(Case):
    onset: int
    every: int

    def weights(self, trainee: Trainee) -> None:
        since = trainee.gradient_steps - self.onset
        if since < 0 or since % self.every:
            return
        for parameter in trainee.model.parameters():
            if state := moments(trainee.optimizer, parameter):
                state["exp_avg"].mul_(FORGOTTEN)
                state["exp_avg_sq"].zero_()


class OptimizerRecreated(Family):
    """A callback rebuilds the optimizer every few steps (to regroup parameters, to follow a schedule of its own), and
    Adam forgets all it knew (but the count of steps, which a schedule may go by). The first update after that is the
    sign of the gradient for every weight, however small that is; rebuilt at every step, Adam is sign descent."""

    name: ClassVar[str] = "pretraining.optimizer_recreated"
    kind: ClassVar[Kind] = "pretraining"

    def draw(self, rng: Random, onset: int) -> Case:
        return Recreation(onset, round(16 ** rng.random()))
