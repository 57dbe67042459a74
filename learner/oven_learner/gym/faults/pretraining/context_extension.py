"""A restart that makes room for a longer context."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Extended(Case):
    onset: int
    stretch: float
    """How many times as long the context can be."""
    sharper: float
    """What the queries are multiplied by."""

    def weights(self, trainee: Trainee) -> None:
        if trainee.gradient_steps != self.onset:
            return
        parameters = dict(trainee.model.named_parameters())
        positions, qkv = parameters["positions.weight"], parameters["block.qkv.weight"]
        positions.copy_(stretched(positions, self.stretch))
        qkv[: len(qkv) // 3].mul_(self.sharper)


def stretched(table: Tensor, times: float) -> Tensor:
    """[places, width]: as many places as there were, each of which is found by interpolation where it is now."""
    at = torch.arange(len(table)) / times
    below = at.long()
    above = (below + 1).clamp(max=len(table) - 1)
    return torch.lerp(table[below], table[above], (at - below).unsqueeze(1))


class ContextExtension(Family):
    """Compound: the script that prepares a checkpoint for a longer context is run on the wrong one, or too early. It
    interpolates the table of positions, so that every place now has the embedding of another, and sharpens the
    attention, which has to hold over more tokens (Peng et al. 2023, "YaRN"). The context is as short as ever, and the
    moments are those of the old weights."""

    name = "pretraining.context_extension"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Extended:
        return Extended(onset, stretch=2 ** rng.uniform(0.3, 5.0), sharper=2 ** rng.uniform(0.0, 4.0))
