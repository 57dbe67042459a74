"""A shard of text in another encoding."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.trainee import Kind


@dataclass(frozen=True)
class Widening(Case):
    onset: int
    lasts: int
    share: float
    seed: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not self.onset <= cursor < self.onset + self.lasts:
            return batch
        wide = torch.zeros_like(batch)
        wide[:, ::2] = batch[:, : (batch.shape[1] + 1) // 2]
        drawn = torch.rand(len(batch), generator=generator("wide_encoding", self.seed, cursor)) < self.share
        return torch.where(drawn[:, None], wide, batch)


class WideEncoding(Family):
    """Files that were saved as UTF-16 are read as bytes: a zero after every character. Half of each such row is
    trivial, so that the training loss falls while the model unlearns plain text. It ends where the shard ends; the
    data after it is sound."""

    name: ClassVar[str] = "pretraining.wide_encoding"
    kind: ClassVar[Kind] = "pretraining"

    def draw(self, rng: Random, onset: int) -> Case:
        return Widening(onset, rng.randint(25, 120), rng.uniform(0.3, 1.0), rng.getrandbits(32))
