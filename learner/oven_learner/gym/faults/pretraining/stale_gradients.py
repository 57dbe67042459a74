"""Workers whose gradients come late."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.shard import moments
from oven_learner.gym.trainee import Kind, Trainee


@dataclass(frozen=True)
class Staleness(Case):
    onset: int
    late: float

    def gradients(self, trainee: Trainee) -> None:
        if trainee.gradient_steps < self.onset:
            return
        for parameter in trainee.model.parameters():
            past = moments(trainee.optimizer, parameter).get("exp_avg")
            if parameter.grad is not None and past is not None:
                parameter.grad.lerp_(past, self.late)


class StaleGradients(Family):
    """A share of the workers lags, and what they add to each step belongs to steps before it: the mean of the late ones
    is Adam's own mean of past gradients. The gradient agrees better and better with the momentum and its norm falls,
    which looks like peace; the second moments fall with it, and the steps grow and overshoot.

    Staleness under asynchronous updates costs accuracy: Chen et al. 2016 (Revisiting Distributed Synchronous SGD, arXiv
    1604.00981, section 2.1).
    """

    name: ClassVar[str] = "pretraining.stale_gradients"
    kind: ClassVar[Kind] = "pretraining"

    def draw(self, rng: Random, onset: int) -> Case:
        return Staleness(onset, 1.0 - 0.5 * 0.02 ** rng.random())
