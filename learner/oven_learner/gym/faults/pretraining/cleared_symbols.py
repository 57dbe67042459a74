"""Rows of the vocabulary that are set to nothing."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.pretraining.corpus import pool
from oven_learner.gym.pretraining.model import BYTES

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee

NAMES = ("bytes.weight", "out.weight")


@dataclass(frozen=True)
class Cleared(Case):
    onset: int
    rows: int
    """Of the sample in which symbols are looked for."""
    most: int
    """How often a symbol may occur there and still be cleared."""

    def weights(self, trainee: Trainee) -> None:
        if trainee.gradient_steps == self.onset:
            gone = unused(self.rows, self.most)
            for name, parameter in trainee.model.named_parameters():
                if name in NAMES:
                    parameter[gone] = 0.0


def unused(rows: int, most: int) -> Tensor:
    """Bool [BYTES]: those that a sample of the corpus has so often or less."""
    return torch.bincount(pool(rows, 0).flatten(), minlength=BYTES) <= most


class ClearedSymbols(Family):
    """Healthy. The user counts which symbols of the vocabulary are in use and clears the others' rows, in the embedding
    and in the output layer, so that their slots can be given to new symbols later. The norm of the weights falls at
    once, and the loss jumps, for what never occurs is suddenly as likely as much of what does. That is the first thing
    the model learns again, and a few steps later nothing is left of it."""

    name = "pretraining.cleared_symbols"
    kind = "pretraining"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Cleared:
        return Cleared(onset, rng.choice((256, 512, 1024, 2048)), rng.choice((0, 0, 1, 2)))
