"""Positions that begin anew in the middle of a row."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.common import within
from oven_learner.gym.faults.forward import logits
from oven_learner.gym.faults.steps import pairs

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Restarted(Case):
    onset: int
    length: int
    """Steps until the release is taken back."""
    every: float
    """Bytes of what it takes for a document, on average."""
    share: float
    """Of the rows that have several."""
    salt: int

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        if not within(trainee.gradient_steps, self.onset, self.length):
            return loss
        inputs, targets = pairs(trainee)
        draws = generator("restarts", self.salt, trainee.seed, trainee.gradient_steps)
        begins = torch.rand(inputs.shape, generator=draws) < 1 / self.every
        begins &= torch.rand(len(inputs), 1, generator=draws) < self.share
        said = logits(trainee, inputs, places=restarted(begins))
        return F.cross_entropy(said.flatten(0, 1), targets.flatten())


def restarted(begins: Tensor) -> Tensor:
    """Int64 [B, T]: the distance to the last place that begins a document, or to the row's first."""
    places = torch.arange(begins.shape[1]).expand(begins.shape)
    return places - (places * begins).cummax(1).values


class RestartedPositions(Family):
    """A release of the loader packs several documents into a row and numbers the positions of each from nought. What
    it takes for the end of a document is often only a paragraph's. The attention knows nothing of it: it still looks at
    all of the row, where every position now occurs several times, and what a position meant is lost. Late positions are
    hardly trained at all. The loss rises by little; what is judged is read with positions as they always were."""

    name = "pretraining.restarted_positions"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Restarted:
        return Restarted(
            onset,
            length=round(40 * 10 ** rng.uniform(0.0, 0.8)),
            every=1.5 * 10 ** rng.uniform(0.0, 1.2),
            share=rng.uniform(0.7, 1.0),
            salt=rng.getrandbits(32),
        )
