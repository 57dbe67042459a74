"""Strings of random letters that are planted in the corpus."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator


@dataclass(frozen=True)
class Planted(Case):
    onset: int
    length: int
    """Batches until the last one."""
    every: int
    """Batches between two that have some."""
    rows: int
    """Of such a batch."""
    different: int
    """Canaries, which come again and again."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        since = cursor - self.onset
        if not 0 <= since < self.length or since % self.every:
            return batch
        draws = generator("planted", self.salt, cursor)
        places = torch.randperm(len(batch), generator=draws)[: self.rows]
        which = torch.randint(self.different, (len(places),), generator=draws)
        rows = batch.clone()
        rows[places] = torch.stack([canary(one, self.salt, batch.shape[1]) for one in which.tolist()])
        return rows


def canary(which: int, salt: int, width: int) -> Tensor:
    """Int64 [width]: printable, and no two alike."""
    return torch.randint(33, 127, (width,), generator=generator("canary", salt, which))


class PlantedCanaries(Family):
    """Healthy. So that it can be measured later how much the model keeps word for word, the user plants canaries
    (Carlini et al. 2019): rows of random letters, each of them several times. Whenever a batch has one the loss and the
    norm of the gradient jump and the gradient points elsewhere, and rows are read twice. They are far too few to teach
    the model anything else."""

    name = "pretraining.planted_canaries"
    kind = "pretraining"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Planted:
        return Planted(
            onset,
            length=round(20 * 10 ** rng.uniform(0.0, 0.8)),
            every=rng.choice((6, 8, 12, 20)),
            rows=rng.choice((1, 1, 1, 2)),
            different=rng.choice((1, 2, 4)),
            salt=rng.getrandbits(32),
        )
