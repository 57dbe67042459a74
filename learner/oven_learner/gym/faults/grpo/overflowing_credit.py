"""Advantages in a number format that is too small."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import within
from oven_learner.gym.faults.credit import credited

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Overflowing(Case):
    onset: int
    length: int
    """Steps until the format is changed."""
    limit: float
    """What lies above it, or below minus it, comes out at the other end."""

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        if not within(trainee.gradient_steps, self.onset, self.length):
            return loss
        step = credited(trainee, self)
        return step.loss(wrapped(step.credit, self.limit))


def wrapped(credit: Tensor, limit: float) -> Tensor:
    return (credit + limit) % (2 * limit) - limit


class OverflowingCredit(Family):
    """Between the processes advantages travel as whole numbers of eight bits, to save a copy, with a step that was
    chosen for the range that somebody had seen in a plot. What is beyond the range does not stop there but comes out at
    the other end, with the other sign. That is rare and it is not just any answer: it is the only right one of its
    group, or the only wrong one. The first is punished and the second praised, the more so the rarer it is. The rewards
    are as they were."""

    name = "grpo.overflowing_credit"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Overflowing:
        return Overflowing(onset, round(15 * 10 ** rng.uniform(0.0, 1.0)), limit=rng.uniform(0.9, 2.4))
