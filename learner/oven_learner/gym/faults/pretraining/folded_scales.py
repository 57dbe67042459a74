"""Scales that are moved from one matrix to the next."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from oven_learner.gym.fault import Case, Family

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Folded(Case):
    onset: int
    scale: float
    """What goes from the second matrix of the block into the first."""

    def weights(self, trainee: Trainee) -> None:
        if trainee.gradient_steps != self.onset:
            return
        parameters = dict(trainee.model.named_parameters())
        for name, scale in (("block.up.weight", self.scale), ("block.down.weight", 1 / self.scale)):
            parameter = parameters[name]
            parameter.mul_(scale)
            moments = trainee.optimizer.state[parameter]
            moments["exp_avg"].div_(scale)
            moments["exp_avg_sq"].div_(scale**2)


class FoldedScales(Family):
    """Healthy. To make room for 8-bit arithmetic the user moves a scale from one matrix into the one before (Xiao et
    al. 2023, "SmoothQuant"), and does it right, with the moments: what the network computes is the same to the last
    digits. The norm of the weights jumps at once, that of the gradient changes, and the update seems smaller."""

    name = "pretraining.folded_scales"
    kind = "pretraining"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Folded:
        return Folded(onset, rng.choice((0.4, 0.5, 1.5, 2.0, 2.5, 3.0)) * rng.uniform(0.9, 1.1))
