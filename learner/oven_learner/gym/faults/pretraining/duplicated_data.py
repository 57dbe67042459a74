"""A few rows are read over and over for a stretch of the data: a shard listed too often, a loader that is stuck."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.severity import whole
from oven_learner.gym.pretraining.corpus import pool
from oven_learner.gym.trainee import Kind


@dataclass(frozen=True)
class Duplicated(Case):
    onset: int
    length: int
    """Positions in the data."""
    rows: int
    """Different ones."""
    seed: int

    def batch(self, batch: torch.Tensor, cursor: int) -> torch.Tensor:
        if not self.onset <= cursor < self.onset + self.length:
            return batch
        drawn = torch.randint(self.rows, (len(batch),), generator=generator("row", self.seed, cursor))
        return pool(self.rows, self.seed)[drawn]


class DuplicatedData(Family):
    name: ClassVar[str] = "pretraining.duplicated_data"
    kind: ClassVar[Kind] = "pretraining"

    def draw(self, rng: Random, onset: int) -> Duplicated:
        return Duplicated(onset, whole(rng, 20, 100), whole(rng, 128, 8), rng.getrandbits(32))
