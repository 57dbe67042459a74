"""The mean of two models that have nothing in common."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.held_out.units import shuffled

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Souped(Case):
    onset: int
    share: float
    """Of the other model in the mean."""
    times: int
    every: int
    """Steps between two of them."""
    salt: int

    def weights(self, trainee: Trainee) -> None:
        """The other model is as good as this one, and has its units in another order."""
        since = trainee.gradient_steps - self.onset
        if since not in range(0, self.times * self.every, self.every):
            return
        own = dict(trainee.model.named_parameters())
        for name, its in shuffled(own, generator("soup", self.salt, since)).items():
            own[name].lerp_(its, self.share)


class SoupedWeights(Family):
    """Two runs of the same settings are to be made into one by the mean of their weights, as one does with runs that
    began from the same checkpoint. These began from two seeds: each is good, but what is one unit here is another
    there, and halfway between them lies nothing. The job goes on from the mean, the loss is back where it was long ago,
    the weights are smaller than before, and the moments are those of one of the two. Where it is a script that does so,
    it does so again at the next checkpoints, until somebody looks. The ones from before are still on the disk."""

    name = "pretraining.souped_weights"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Souped:
        return Souped(
            onset,
            share=rng.uniform(0.2, 0.5),
            times=rng.choice((1, 2, 3, 5, 8)),
            every=rng.choice((5, 10, 20)),
            salt=rng.getrandbits(32),
        )
