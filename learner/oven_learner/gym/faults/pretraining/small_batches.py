"""From the onset on some batches hold a few rows only, as at the ends of shards: gauges are noisy, nothing is wrong.

Were they all so small, a lower rate would be the right answer, and the case no hard negative.
"""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.severity import uniform, whole
from oven_learner.gym.trainee import Kind


@dataclass(frozen=True)
class Small(Case):
    onset: int
    rows: int
    share: float
    """Of the batches."""
    seed: int

    def batch(self, batch: torch.Tensor, cursor: int) -> torch.Tensor:
        if cursor < self.onset or torch.rand((), generator=generator("small", self.seed, cursor)) >= self.share:
            return batch
        return batch[: self.rows]


class SmallBatches(Family):
    name: ClassVar[str] = "pretraining.small_batches"
    kind: ClassVar[Kind] = "pretraining"
    healthy: ClassVar[bool] = True

    def draw(self, rng: Random, onset: int) -> Small:
        return Small(onset, whole(rng, 4, 2), uniform(rng, 0.2, 0.4), rng.getrandbits(32))
