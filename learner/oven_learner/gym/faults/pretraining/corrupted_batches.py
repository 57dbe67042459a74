"""A stretch of the data is damaged: a share of its bytes are random."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.severity import log_uniform, whole
from oven_learner.gym.pretraining.model import BYTES
from oven_learner.gym.trainee import Kind


@dataclass(frozen=True)
class Corrupted(Case):
    """It lies at `length` positions of the data from the onset on: a run that goes back meets it again."""

    onset: int
    length: int
    share: float
    seed: int

    def batch(self, batch: torch.Tensor, cursor: int) -> torch.Tensor:
        if not self.onset <= cursor < self.onset + self.length:
            return batch
        drawn = generator("corrupted", self.seed, cursor)
        damaged = torch.rand(batch.shape, generator=drawn) < self.share
        return torch.where(damaged, torch.randint(BYTES, batch.shape, generator=drawn), batch)


class CorruptedBatches(Family):
    name: ClassVar[str] = "pretraining.corrupted_batches"
    kind: ClassVar[Kind] = "pretraining"

    def draw(self, rng: Random, onset: int) -> Corrupted:
        return Corrupted(onset, whole(rng, 5, 60), log_uniform(rng, 0.1, 1), rng.getrandbits(32))
