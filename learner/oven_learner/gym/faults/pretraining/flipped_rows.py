"""Text that is read from its end."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import hit, within


@dataclass(frozen=True)
class Flipped(Case):
    onset: int
    length: int
    """Batches until the loader's options are put right."""
    share: float
    """Of the rows."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not within(cursor, self.onset, self.length):
            return batch
        rows = hit(len(batch), self.share, "flipped", self.salt, cursor).unsqueeze(1)
        return torch.where(rows, batch.flip(1), batch)


class FlippedRows(Family):
    """The loader is shared with a team that trains on images, and with its new release the usual augmentation is on
    for all: with some chance a sample is flipped from left to right. Flipped text has the same bytes in the same
    number, and nothing checks more. The loss goes up by as much as there is of it, and falls again while the model
    learns to read backwards, for which it has to give up some of what it knew."""

    name = "pretraining.flipped_rows"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Flipped:
        return Flipped(
            onset,
            length=round(20 * 10 ** rng.uniform(0.0, 0.9)),
            share=rng.choice((0.1, 0.25, 0.5, 0.5, 0.75, 1.0)),
            salt=rng.getrandbits(32),
        )
