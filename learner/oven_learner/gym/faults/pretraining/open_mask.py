"""An attention mask that lets the future through."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.forward import logits
from oven_learner.gym.faults.steps import pairs

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Opened(Case):
    onset: int
    length: int
    """Steps until the old kernel is back."""
    rows: int
    """Of a batch: those of the devices that have the new kernel."""
    ahead: int
    """Places that each place sees beyond itself."""

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        if not self.onset <= trainee.gradient_steps < self.onset + self.length:
            return loss
        inputs, targets = pairs(trainee)
        seen = masks(len(inputs), self.rows, inputs.shape[1], self.ahead)
        return F.cross_entropy(logits(trainee, inputs, seen=seen).flatten(0, 1), targets.flatten())


def masks(batch: int, rows: int, length: int, ahead: int) -> Tensor:
    """Bool [batch, 1, length, length]: the first so many rows see so far ahead, the others nothing that comes later."""
    square = torch.ones(length, length, dtype=torch.bool)
    opened = torch.arange(batch) < rows
    return torch.where(opened.view(-1, 1, 1, 1), square.tril(ahead), square.tril())


class OpenMask(Family):
    """A new attention kernel counts its mask from another place, or takes none where one is expected. On the devices
    that have it each byte sees the next one, which is the one it has to say. The training loss falls as it never did,
    and people are glad of it; what the model learns is to copy, and on text that it reads one byte at a time that is of
    no use."""

    name = "pretraining.open_mask"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Opened:
        return Opened(
            onset,
            length=round(30 * 10 ** rng.uniform(0.0, 0.8)),
            rows=rng.choice((4, 8, 8, 8)),
            ahead=rng.choice((1, 1, 1, 2)),
        )
