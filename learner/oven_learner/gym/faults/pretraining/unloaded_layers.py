"""Layers that a restart did not find in the checkpoint."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch

from oven_learner.gym.fault import Case, Family, generator

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee

STD = 0.02
"""Of fresh weights, as most libraries have it."""


@dataclass(frozen=True)
class Unloaded(Case):
    onset: int
    first: float
    """Where the missing tensors begin, as a share of all."""
    share: float
    """Of the tensors; at least one."""
    shards: float
    """The share of each one's rows: one shard's, or all."""
    salt: int

    def weights(self, trainee: Trainee) -> None:
        if trainee.gradient_steps != self.onset:
            return
        parameters = list(trainee.model.parameters())
        first = int(self.first * len(parameters))
        for index in range(first, first + max(1, round(self.share * len(parameters)))):
            missing = parameters[index % len(parameters)]
            fresh = torch.randn(missing.shape, generator=generator("unloaded", self.salt, index)) * STD
            rows = max(1, round(self.shards * len(missing)))
            missing[:rows] = fresh[:rows] if missing.dim() > 1 else 0.0


class UnloadedLayers(Family):
    """After a restart some names do not match those in the checkpoint, or a shard of it is missing, and the load is not
    strict: a warning in the log, and fresh weights in those places. The optimizer goes by position, so that its moments
    are there."""

    name = "pretraining.unloaded_layers"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Unloaded:
        shards = rng.choice((0.125, 0.25, 0.5, 1.0))
        return Unloaded(onset, rng.random(), rng.uniform(0.05, 0.7), shards, rng.getrandbits(32))
