"""A shard that several processes wrote at once."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.held_out.common import hit


@dataclass(frozen=True)
class Interleaved(Case):
    onset: int
    length: int
    """Batches until the shard is used up."""
    writers: int
    piece: int
    """Bytes that one of them writes at a time."""
    share: float
    """Of the rows."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not self.onset <= cursor < self.onset + self.length:
            return batch
        rows = hit(len(batch), self.share, "interleaved", self.salt, cursor).unsqueeze(1)
        return torch.where(rows, interleaved(batch, self.writers, self.piece), batch)


def interleaved(rows: Tensor, writers: int, piece: int) -> Tensor:
    """Int64 [B, L]: pieces of so many rows in turn, of each from its beginning."""
    at = torch.arange(rows.shape[1])
    turn = at // piece
    own = turn // writers * piece + at % piece  # how far a writer has come
    of = (torch.arange(len(rows)).unsqueeze(1) + turn % writers) % len(rows)  # [B, L]
    return rows[of, own]


class InterleavedWriters(Family):
    """The processes that prepare a part of the corpus all append to the same file, each as its buffer is full, and
    nobody holds a lock. The file is as long as it should be and every piece in it is good text, but the piece that
    follows is from another document. The loss steps up by as much as there are seams, and what the model learns is not
    to rely on what came before."""

    name = "pretraining.interleaved_writers"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Interleaved:
        return Interleaved(
            onset,
            length=round(20 * 10 ** rng.uniform(0.0, 1.0)),
            writers=rng.choice((2, 3, 4, 8)),
            piece=round(10 ** rng.uniform(0.0, 1.2)),
            share=rng.uniform(0.5, 1.0),
            salt=rng.getrandbits(32),
        )
