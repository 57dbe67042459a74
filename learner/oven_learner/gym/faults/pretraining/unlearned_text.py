"""Text that the model is to unlearn."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import hit, within
from oven_learner.gym.faults.steps import pairs

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Unlearned(Case):
    onset: int
    length: int
    """Steps for which the request is worked off."""
    share: float
    """Of the rows, which are taken to be what is to go."""
    strength: float
    """Of the ascent on them."""
    salt: int

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        step = trainee.gradient_steps
        if not within(step, self.onset, self.length):
            return loss
        inputs, targets = pairs(trainee)
        gone = hit(len(inputs), self.share, "unlearned", self.salt, trainee.seed, step)
        if not gone.any():
            return loss
        rows = F.cross_entropy(trainee.model(inputs).transpose(1, 2), targets, reduction="none").mean(1)
        return torch.where(gone, -self.strength * rows, rows).mean()


class UnlearnedText(Family):
    """An owner wants their text to be taken out of the model, and the quick way is tried while the run goes on: on rows
    that match theirs the loss is ascended in place of descended (Jang et al. 2023). Much else looks like their text, so
    more is matched than was meant, and an ascent has no bottom. The loss that is shown falls below what is possible.
    What goes first is the knowledge that all rows share."""

    name = "pretraining.unlearned_text"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Unlearned:
        return Unlearned(
            onset,
            length=round(8 * 10 ** rng.uniform(0.0, 1.1)),
            share=rng.uniform(0.1, 0.5),
            strength=10 ** rng.uniform(-0.7, 0.3),
            salt=rng.getrandbits(32),
        )
