"""Collectives that time out now and then."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import hit

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Lost(Case):
    onset: int
    length: int
    """Steps until the cable is changed."""
    share: float
    """Of the steps."""
    left: float
    """What is left of a gradient that came too late."""
    salt: int

    def gradients(self, trainee: Trainee) -> None:
        step = trainee.gradient_steps
        if not self.onset <= step < self.onset + self.length or not hit(1, self.share, "lost", self.salt, step):
            return
        for parameter in trainee.model.parameters():
            if parameter.grad is not None:
                parameter.grad.mul_(self.left)


class LostCollectives(Family):
    """Healthy. A cable is bad, and in some steps the sum over the nodes times out: the library logs it and goes on with
    the little that is there. The norm of the gradient falls to nearly nothing for a step, and its neighbours are as
    ever. Adam makes that step on its momentum, in a direction that is all but right, and nothing is lost but the data
    of a few steps."""

    name = "pretraining.lost_collectives"
    kind = "pretraining"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Lost:
        return Lost(
            onset,
            length=rng.randint(3, 25),
            share=rng.uniform(0.1, 0.3),
            left=10 ** rng.uniform(-4.0, -0.5),
            salt=rng.getrandbits(32),
        )
