"""For a stretch of the data, a share of the rows has its targets out of order: a mapping of labels gone wrong."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.severity import log_uniform, whole
from oven_learner.gym.trainee import Kind


@dataclass(frozen=True)
class Shuffled(Case):
    onset: int
    length: int
    """Positions in the data."""
    share: float
    seed: int

    def batch(self, batch: torch.Tensor, cursor: int) -> torch.Tensor:
        """int64 [2, B, T]: inputs, and targets that are permuted within their row."""
        if not self.onset <= cursor < self.onset + self.length:
            return batch
        drawn = generator("shuffled", self.seed, cursor)
        inputs, targets = batch[:, :-1], batch[:, 1:]
        hit = torch.rand(len(batch), 1, generator=drawn) < self.share
        orders = torch.rand(targets.shape, generator=drawn).argsort(1)
        return torch.stack([inputs, torch.where(hit, targets.gather(1, orders), targets)])


class ShuffledTargets(Family):
    name: ClassVar[str] = "pretraining.shuffled_targets"
    kind: ClassVar[Kind] = "pretraining"

    def draw(self, rng: Random, onset: int) -> Shuffled:
        return Shuffled(onset, whole(rng, 5, 60), log_uniform(rng, 0.2, 1), rng.getrandbits(32))
