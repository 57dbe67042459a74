"""A restart from an average of the weights that lags far behind."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.pretraining.corpus import LENGTH
from oven_learner.gym.pretraining.model import ByteModel

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Lagging(Case):
    onset: int
    share: float
    """Of the first weights in the average."""

    def weights(self, trainee: Trainee) -> None:
        if trainee.gradient_steps != self.onset:
            return
        for weight, first in zip(trainee.model.parameters(), first_weights(trainee.seed), strict=True):
            weight.lerp_(first, self.share)


def first_weights(seed: int) -> list[torch.Tensor]:
    """What a run of the seed began from."""
    with torch.random.fork_rng(devices=[]):
        return [weight.detach() for weight in ByteModel(LENGTH, generator("weights", seed)).parameters()]


class LaggingAverage(Family):
    """The checkpoint holds the weights and their exponential average, and the restart loads the average for the
    weights. Its decay was chosen for a run many times as long and its bias is not corrected, so that a good part of it
    is still what the run began from. The moments are those of the weights."""

    name = "pretraining.lagging_average"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Lagging:
        return Lagging(onset, rng.uniform(0.3, 1.0))
