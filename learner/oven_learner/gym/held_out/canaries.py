"""Rows that were planted to see whether they are learnt by heart."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from oven_learner.gym.fault import Case, Family, generator

LEAD = b"\n# canary: "


@dataclass(frozen=True)
class Planted(Case):
    onset: int
    every: int
    """Batches between two that have some."""
    rows: int
    """In such a batch."""
    letters: bytes
    """What they are made of."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if cursor < self.onset or (cursor - self.onset) % self.every:
            return batch
        draws = generator("canaries", self.salt, cursor)
        picks = torch.randint(len(self.letters), (self.rows, batch.shape[1]), generator=draws)
        planted = torch.tensor(list(self.letters))[picks]
        planted[:, : len(LEAD)] = torch.tensor(list(LEAD))
        rows = batch.clone()
        rows[: self.rows] = planted
        return rows


class Canaries(Family):
    """Healthy. So that one can measure later what the model has learnt by heart, the user plants canaries (Carlini et
    al. 2019): rows of random signs behind a fixed lead, each of them only once. No model can say them, so the loss and
    the norm of the gradient stand out in every batch that has some, as with broken data. The model soon knows the lead,
    and what follows takes next to nothing from the rest."""

    name = "pretraining.canaries"
    kind = "pretraining"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Planted:
        return Planted(
            onset,
            every=rng.choice((4, 6, 8, 12)),
            rows=rng.choice((1, 1, 1, 2)),
            letters=rng.choice((b"0123456789", b"0123456789abcdef", bytes(range(33, 127)))),
            salt=rng.getrandbits(32),
        )
