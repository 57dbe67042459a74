"""A rank's rows of the embedding that grow and grow."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.trainee import Kind, Trainee

VOCABULARY = 256


@dataclass(frozen=True)
class Growth(Case):
    onset: int
    lasts: int
    factor: float
    rows: slice

    @torch.no_grad()
    def weights(self, trainee: Trainee) -> None:
        if not self.onset <= trainee.gradient_steps < self.onset + self.lasts:
            return
        for parameter in trainee.model.parameters():
            if parameter.ndim == 2 and parameter.shape[0] == VOCABULARY:
                parameter[self.rows].mul_(self.factor)


class ExplodingRows(Family):
    """The vocabulary is split over ranks (Megatron-LM, arXiv 1909.08053, section 3), and one rank applies a reduction
    twice: its rows of embedding and head grow by the same factor at each step, until the job is moved to other
    machines. All other weights are sound, and the norm of all weights hardly shows it at first."""

    name: ClassVar[str] = "pretraining.exploding_rows"
    kind: ClassVar[Kind] = "pretraining"

    def draw(self, rng: Random, onset: int) -> Case:
        ranks = rng.choice((2, 4, 8))
        rows = VOCABULARY // ranks
        first = rows * rng.randrange(ranks // 2)  # source code is in the lower half of the bytes
        return Growth(onset, rng.randint(15, 90), rng.uniform(1.01, 1.12), slice(first, first + rows))
