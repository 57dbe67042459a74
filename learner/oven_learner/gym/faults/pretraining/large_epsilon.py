"""A guard against a division by zero that is larger than what it guards."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from oven_learner.gym.fault import Case, Family

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Guarded(Case):
    onset: int
    epsilon: float

    def settings(self, trainee: Trainee) -> None:
        if trainee.gradient_steps >= self.onset:
            trainee.optimizer.param_groups[0]["eps"] = self.epsilon


class LargeEpsilon(Family):
    """Somebody raises Adam's epsilon for stability in half precision, by the advice for another model, whose gradients
    were summed and not averaged. Where the root of the second moment is smaller than it, a weight learns in proportion
    to its gradient and no more by its sign: most weights all but stop, rare tokens first."""

    name = "pretraining.large_epsilon"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Guarded:
        return Guarded(onset, 10 ** rng.uniform(-4.0, -1.0))
