"""A small teacher, whose words come a few places late."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.steps import pairs
from oven_learner.gym.pretraining.corpus import pool
from oven_learner.gym.pretraining.model import BYTES

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee

ROWS, SMOOTHING = 2048, 0.01


@dataclass(frozen=True)
class Taught(Case):
    onset: int
    share: float
    """Of the loss that is the teacher's."""
    late: int
    """Places by which its words stand behind where they belong."""

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        if trainee.gradient_steps < self.onset:
            return loss
        inputs, _ = pairs(trainee)
        wanted = teacher()[inputs.roll(self.late, 1)]
        taught = F.cross_entropy(trainee.model(inputs).flatten(0, 1), wanted.flatten(0, 1))
        return torch.lerp(loss, taught, self.share)


@cache
def teacher() -> Tensor:
    """Float32 [BYTES, BYTES]: how likely each byte is to come after each other, as it is in the corpus."""
    rows = pool(ROWS, 0)
    follows = torch.bincount((rows[:, :-1] * BYTES + rows[:, 1:]).flatten(), minlength=BYTES**2)
    counts = follows.view(BYTES, BYTES) + SMOOTHING
    return counts / counts.sum(1, keepdim=True)


class LateTeacher(Family):
    """Compound: to save time the user lets the model learn from a teacher as well, and takes a small one, which soon
    has nothing more to teach; and its probabilities, computed once and kept on disk, begin at another place than the
    rows do, so that each stands beside a byte that it was not said of. The loss steps up and its curve becomes flat.
    That is taken for what a teacher costs in the beginning."""

    name = "pretraining.late_teacher"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Taught:
        return Taught(onset, rng.uniform(0.1, 0.8), rng.choice((1, 1, 2, 4)))
