"""A loss in which rare bytes count for more."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import within
from oven_learner.gym.faults.steps import pairs
from oven_learner.gym.pretraining.corpus import SHARES, corpus
from oven_learner.gym.pretraining.model import BYTES

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee

LEAST = 1e-5
"""The frequency that a byte is taken to have at least."""


@dataclass(frozen=True)
class Balanced(Case):
    onset: int
    length: int
    """Steps until the option is taken back."""
    power: float
    """A byte counts by this power of one over its frequency."""

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        if not within(trainee.gradient_steps, self.onset, self.length):
            return loss
        inputs, targets = pairs(trainee)
        weights = frequencies().pow(-self.power)
        return F.cross_entropy(trainee.model(inputs).flatten(0, 1), targets.flatten(), weight=weights)


@cache
def frequencies() -> Tensor:
    """Float32 [BYTES]: of each byte in the user's own mixture."""
    made = torch.zeros(BYTES)
    for kind, share in SHARES.items():
        rows = corpus().train[kind]
        made += share * torch.bincount(rows.flatten().long(), minlength=BYTES) / rows.numel()
    return made.clamp(min=LEAST)


class BalancedClasses(Family):
    """Rare signs are learnt late, and somebody remembers what is done for classes of unequal size: each is weighted by
    one over its frequency, or a root of it. The option is one word in the call of the loss. It does what it promises,
    and from then on the model says the rare ones far too often. The loss that is shown is the weighted one, which is
    another number than before, so that nobody can tell by it."""

    name = "pretraining.balanced_classes"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Balanced:
        return Balanced(
            onset,
            length=round(30 * 10 ** rng.uniform(0.0, 0.9)),
            power=rng.choice((0.2, 0.33, 0.33, 0.5, 0.5, 0.67, 1.0)),
        )
