"""Batches that are reshaped where they should be transposed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from oven_learner.gym.fault import Case, Family, generator


@dataclass(frozen=True)
class Transposed(Case):
    onset: int
    rows: int
    """That are read as one block, and so are mixed."""
    share: float
    """Of the blocks."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if cursor < self.onset:
            return batch
        blocks = torch.split(batch, self.rows)
        mixed = torch.rand(len(blocks), generator=generator("transposed", self.salt, cursor)) < self.share
        return torch.cat([interleaved(block) if mix else block for block, mix in zip(blocks, mixed, strict=True)])


def interleaved(rows: torch.Tensor) -> torch.Tensor:
    """Int64 [rows, length], the first place of each row, then the second of each, and so on."""
    return rows.t().reshape(rows.shape)


class TransposedBatch(Family):
    """A loader that keeps time in the first dimension and one that keeps it in the second are joined by a `reshape`,
    which takes the right shape from the wrong order: neighbours in a row are bytes of different documents. Every byte
    is there as often as before."""

    name = "pretraining.transposed_batch"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Transposed:
        return Transposed(onset, rng.choice((2, 4, 8)), rng.uniform(0.05, 1.0), rng.getrandbits(32))
