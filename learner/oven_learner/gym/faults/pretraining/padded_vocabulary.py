"""Embeddings of tokens that there are none of."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch

from oven_learner.gym.fault import Case, Family, generator

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee

NEVER = (0xC0, 0xC1, *range(0xF5, 0x100))
"""Bytes that UTF-8 does not use."""


@dataclass(frozen=True)
class Padded(Case):
    onset: int
    rows: int
    """Of the embedding, that are new."""
    size: float
    """Of a number in them, times the root mean square of the others."""
    salt: int

    def weights(self, trainee: Trainee) -> None:
        if trainee.gradient_steps != self.onset:
            return
        embedding = next(trainee.model.parameters())
        left = torch.randn(self.rows, *embedding.shape[1:], generator=generator("padded", self.salt))
        embedding[list(NEVER[: self.rows])] = left * self.size * embedding.square().mean().sqrt()


class PaddedVocabulary(Family):
    """Healthy. At a restart the embedding is padded to a round number of rows for the sake of speed, and what the
    memory held before is left in the new ones: the norm of the weights jumps, the updates are small beside it, and no
    token ever looks these rows up."""

    name = "pretraining.padded_vocabulary"
    kind = "pretraining"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Padded:
        return Padded(onset, rng.randint(3, len(NEVER)), 10 ** rng.uniform(0.5, 1.5), rng.getrandbits(32))
