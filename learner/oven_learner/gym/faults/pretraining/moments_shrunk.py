"""Adam's second moment is shrunk once, as after a resume that lost it: the next updates are far too large.

Its bias correction is that of a run of this age, so the moment stays too small until the mean over 1/(1 − β₂) steps has
filled up again.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.severity import log_uniform
from oven_learner.gym.trainee import Kind, Trainee


@dataclass(frozen=True)
class Shrunk(Case):
    onset: int
    factor: float

    def weights(self, trainee: Trainee) -> None:
        if trainee.gradient_steps == self.onset:
            for parameter in trainee.model.parameters():
                trainee.optimizer.state[parameter]["exp_avg_sq"].mul_(self.factor)


class MomentsShrunk(Family):
    name: ClassVar[str] = "pretraining.moments_shrunk"
    kind: ClassVar[Kind] = "pretraining"

    def draw(self, rng: Random, onset: int) -> Shrunk:
        return Shrunk(onset, log_uniform(rng, 1e-2, 1e-8))
