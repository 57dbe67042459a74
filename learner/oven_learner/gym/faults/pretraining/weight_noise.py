"""The weights are disturbed once: a bad load, a bit error, a wrong average."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.severity import log_uniform
from oven_learner.gym.trainee import Kind, Trainee


@dataclass(frozen=True)
class Noise(Case):
    onset: int
    deviation: float
    """Of the noise, over the root mean square of each matrix."""
    seed: int

    def weights(self, trainee: Trainee) -> None:
        if trainee.gradient_steps != self.onset:
            return
        drawn = generator("noise", self.seed)
        for parameter in trainee.model.parameters():
            size = parameter.square().mean().sqrt()
            parameter.add_(torch.randn(parameter.shape, generator=drawn) * (self.deviation * size))


class WeightNoise(Family):
    name: ClassVar[str] = "pretraining.weight_noise"
    kind: ClassVar[Kind] = "pretraining"

    def draw(self, rng: Random, onset: int) -> Noise:
        return Noise(onset, log_uniform(rng, 0.1, 3), rng.getrandbits(32))
