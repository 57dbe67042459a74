"""Units that are taken for dead, and set up anew."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.common import hit

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Revived(Case):
    onset: int
    every: int
    """Steps between two rounds."""
    rounds: int
    share: float
    """Of the units of each layer that a round takes for dead."""
    salt: int

    def weights(self, trainee: Trainee) -> None:
        since = trainee.gradient_steps - self.onset
        if not 0 <= since < self.rounds * self.every or since % self.every:
            return
        for name, weight in trainee.model.named_parameters():
            if name.startswith(("block.", "out.")):
                units = hit(len(weight), self.share, "dead", self.salt, since, name)
                drawn = torch.randn(weight.shape, generator=generator("revived", self.salt, since, name))
                weight[units] = drawn[units] * weight.shape[1] ** -0.5
                for moment in ("exp_avg", "exp_avg_sq"):
                    trainee.optimizer.state[weight][moment][units] = 0.0


class RevivedUnits(Family):
    """The user has read that units which never fire should be recycled (ReDo, Sokar et al. 2023), and adds a round of
    it every so often, to all linear layers, the last one among them. The threshold was found for inputs on another
    scale, so that each round takes for dead what is at work. Its weights are drawn anew and its moments cleared. The
    loss jumps with each round, which is said to be the price of plasticity, and after some rounds it is given up."""

    name = "pretraining.revived_units"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Revived:
        return Revived(
            onset,
            every=rng.choice((2, 4, 8, 16)),
            rounds=round(10 ** rng.uniform(0.0, 1.3)),
            share=10 ** rng.uniform(-1.3, 0.0),
            salt=rng.getrandbits(32),
        )
