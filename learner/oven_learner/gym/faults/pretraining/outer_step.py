"""An outer optimizer that overshoots."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.steps import rate

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee

BETAS, FLOOR = (0.9, 0.95), 1e-8
"""Of the inner optimizer."""


@dataclass(frozen=True)
class Outer(Case):
    onset: int
    every: int
    """Steps between two exchanges."""
    reach: float
    """How far each goes on, in units of the steps since the last."""

    def weights(self, trainee: Trainee) -> None:
        since = trainee.gradient_steps - self.onset
        if since >= 0 and since % self.every == 0:
            onward(trainee, rate(trainee) * self.every * self.reach)


def onward(trainee: Trainee, length: float) -> None:
    """All weights go on in the direction of the inner optimizer's last step."""
    for parameter in trainee.model.parameters():
        held = trainee.optimizer.state[parameter]
        done = float(held["step"])
        if done > 0:
            first = held["exp_avg"] / (1 - BETAS[0] ** done)
            second = held["exp_avg_sq"] / (1 - BETAS[1] ** done)
            parameter.sub_(length * first / (second.sqrt() + FLOOR))


class OuterStep(Family):
    """To save traffic the sites train by themselves and exchange their progress every so many steps; an outer optimizer
    with a momentum of its own then carries the common weights on. Its momentum was tuned with other sites, that
    disagreed more, and whose progress partly cancelled. Here they agree, and each exchange throws the weights beyond
    where the inner steps would have led. The loss jumps at each, and comes down again until the next."""

    name = "pretraining.outer_step"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Outer:
        return Outer(onset, rng.choice((5, 10, 20, 30)), 10 ** rng.uniform(-0.4, 0.35))
