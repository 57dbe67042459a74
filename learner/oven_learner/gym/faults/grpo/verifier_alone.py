"""A user who trusts the verifier alone."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.shares import moved_to

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Alone(Case):
    onset: int
    weight: float
    """Of the verifier."""

    def settings(self, trainee: Trainee) -> None:
        if trainee.gradient_steps >= self.onset:
            moved_to(trainee.settings, "reward.weights/exact", self.weight)


class VerifierAlone(Family):
    """Healthy. Once the policy has found its way, the user takes the weight from the softer judges and gives it to the
    verifier, so that nothing is left to be gamed. An answer that is nearly right earns little or nothing now: the mean
    reward falls at once, its deviation jumps, and more groups have no differences at all."""

    name = "grpo.verifier_alone"
    kind = "grpo"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Alone:
        return Alone(onset, rng.uniform(0.6, 1.0))
