"""Text that was written in words of another byte order."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import hit, within


@dataclass(frozen=True)
class Swapped(Case):
    onset: int
    length: int
    """Batches until the shard is used up."""
    word: int
    """Bytes."""
    share: float
    """Of the rows."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not within(cursor, self.onset, self.length):
            return batch
        rows = hit(len(batch), self.share, "swapped", self.salt, cursor).unsqueeze(1)
        return torch.where(rows, swapped(batch, self.word), batch)


def swapped(rows: Tensor, word: int) -> Tensor:
    """Int64 [B, L]: the bytes of each whole word the other way round; what is left of the row stays."""
    whole = rows.shape[1] // word * word
    words = rows[:, :whole].reshape(len(rows), -1, word).flip(2).flatten(1)
    return torch.cat([words, rows[:, whole:]], 1)


class SwappedBytes(Family):
    """A shard of the corpus was packed on another machine, as words of two bytes or four, and is read here in the
    other byte order. No byte is out of range and the counts of bytes are as ever, so that no check of the data finds
    anything, but within each word the text runs backwards. The loss steps up where the shard begins and falls as the
    model learns to read it so, which is of no use for any other text."""

    name = "pretraining.swapped_bytes"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Swapped:
        return Swapped(
            onset,
            length=round(12 * 10 ** rng.uniform(0.0, 1.1)),
            word=rng.choice((2, 2, 4)),
            share=rng.uniform(0.4, 1.0),
            salt=rng.getrandbits(32),
        )
