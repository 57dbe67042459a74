"""Padding that is counted in the loss."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator

FILLER = 0
"""The byte that rows are filled up with."""


@dataclass(frozen=True)
class Filled(Case):
    onset: int
    length: int
    """Batches until the packed data are back."""
    shortest: float
    longest: float
    """What a document takes of its row, at least and at most."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not self.onset <= cursor < self.onset + self.length:
            return batch
        drawn = torch.rand(len(batch), generator=generator("filled", self.salt, cursor))
        return filled(batch, torch.lerp(torch.tensor(self.shortest), torch.tensor(self.longest), drawn))


def filled(rows: Tensor, kept: Tensor) -> Tensor:
    """Int64 [B, L]: of each row the first part is kept, two bytes at least, and FILLER comes behind it."""
    ends = (kept * rows.shape[1]).long().clamp(min=2).unsqueeze(1)
    return torch.where(torch.arange(rows.shape[1]) < ends, rows, FILLER)


class CountedPadding(Family):
    """A stretch of the data comes as one short document a row instead of packed, and the collator fills the rows up.
    Nobody told the loss to pass over the filler. It is learnt in a few steps, the loss falls to a fraction, and what
    there is to learn reaches the model only as a small part of each mean, and only from the first places of a row; to
    the rest it learns to say that nothing follows."""

    name = "pretraining.counted_padding"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Filled:
        shortest = rng.uniform(0.02, 0.3)
        return Filled(
            onset,
            length=round(20 * 10 ** rng.uniform(0.0, 1.0)),
            shortest=shortest,
            longest=min(1.0, shortest * rng.uniform(1.2, 3.0)),
            salt=rng.getrandbits(32),
        )
