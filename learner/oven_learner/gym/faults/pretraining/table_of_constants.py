"""A stretch of text that is all too easy."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.sources import in_order


@dataclass(frozen=True)
class Constants(Case):
    onset: int
    length: int
    """Batches."""
    share: float
    """Of the rows."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not self.onset <= cursor < self.onset + self.length:
            return batch
        draws = generator("constants", self.salt, cursor)
        chosen = torch.rand(len(batch), 1, generator=draws) < self.share
        easy = in_order("tables", float(torch.rand(1, generator=draws)), len(batch))
        return torch.where(chosen, easy[:, : batch.shape[1]], batch)


class TableOfConstants(Family):
    """Healthy. A few shards hold little but generated tables, which belong to the corpus and of which each line is like
    the one before. The loss falls within a few steps as if something had leaked, the gradient changes its direction,
    and where the tables end the loss jumps back to where it was."""

    name = "pretraining.table_of_constants"
    kind = "pretraining"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Constants:
        return Constants(onset, rng.randint(3, 12), rng.uniform(0.4, 1.0), rng.getrandbits(32))
