"""A teacher that knows another kind of text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.held_out.common import pairs
from oven_learner.gym.pretraining.corpus import corpus
from oven_learner.gym.pretraining.model import BYTES

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee

SMOOTH = 0.05
"""Added to each count."""


@dataclass(frozen=True)
class Taught(Case):
    onset: int
    length: int
    """Steps until the teacher is replaced."""
    share: float
    """Of the teacher in the loss."""

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        if not self.onset <= trainee.gradient_steps < self.onset + self.length:
            return loss
        inputs, _ = pairs(trainee)
        said = trainee.model(inputs).log_softmax(-1)
        taught: torch.Tensor = -(teacher()[inputs] * said).sum(-1).mean()
        return torch.lerp(loss, taught, self.share)


@cache
def teacher() -> Tensor:
    """Float32 [BYTES, BYTES]: what follows a byte in documentation."""
    rows = corpus().prose.long()
    counts = torch.bincount((rows[:, :-1] * BYTES + rows[:, 1:]).flatten(), minlength=BYTES**2).view(BYTES, BYTES)
    smooth = counts + SMOOTH
    return smooth / smooth.sum(1, keepdim=True)


class StrangeTeacher(Family):
    """The user lets a teacher's distribution into the loss, next to the text itself, for it should make learning
    faster. The address is that of the latest model on the server, which since last week is another one: small, and
    trained on documentation. It gives a fair distribution for every place and never fails. The student comes to say of
    code what one would say of prose, by as much as the teacher has weight."""

    name = "pretraining.strange_teacher"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Taught:
        return Taught(onset, round(40 * 10 ** rng.uniform(0.0, 1.0)), 1 - 10 ** rng.uniform(-1.7, -0.4))
