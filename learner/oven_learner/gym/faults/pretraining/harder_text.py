"""The user brings in a harder sub-corpus: from the onset on a share of the rows is documentation, and the loss jumps
for an honest reason."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.severity import uniform
from oven_learner.gym.pretraining.corpus import corpus
from oven_learner.gym.trainee import Kind


@dataclass(frozen=True)
class Harder(Case):
    onset: int
    share: float
    seed: int

    def batch(self, batch: torch.Tensor, cursor: int) -> torch.Tensor:
        if cursor < self.onset:
            return batch
        prose = corpus().prose
        order = torch.randperm(len(prose), generator=generator("prose", self.seed))
        first = (cursor - self.onset) * len(batch)
        read = prose[order[torch.arange(first, first + len(batch)) % len(prose)]].long()
        swapped = torch.rand(len(batch), 1, generator=generator("share", self.seed, cursor)) < self.share
        return torch.where(swapped, read, batch)


class HarderText(Family):
    name: ClassVar[str] = "pretraining.harder_text"
    kind: ClassVar[Kind] = "pretraining"
    healthy: ClassVar[bool] = True

    def draw(self, rng: Random, onset: int) -> Harder:
        return Harder(onset, uniform(rng, 0.2, 0.6), rng.getrandbits(32))
