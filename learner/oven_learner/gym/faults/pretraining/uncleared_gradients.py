"""Gradients that are not set to zero between two steps."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from oven_learner.gym.fault import Case, Family

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Uncleared(Case):
    """What is left over is proportional to the first moment, the mean of the gradients that were: with all of it kept,
    that moment becomes their plain sum (Adam, m ← m + (1 − β₁) g)."""

    onset: int
    kept: float

    def gradients(self, trainee: Trainee) -> None:
        if trainee.gradient_steps < self.onset:
            return
        for parameter in trainee.model.parameters():
            if parameter.grad is not None and (moments := trainee.optimizer.state.get(parameter)):
                parameter.grad.add_(moments["exp_avg"], alpha=self.kept)


class UnclearedGradients(Family):
    """A loop that was rewritten calls `zero_grad` in the wrong place, or a reduction's buckets are not emptied: old
    gradients are added to the new ones, in part (some buckets) or all of them."""

    name = "pretraining.uncleared_gradients"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Uncleared:
        return Uncleared(onset, rng.uniform(0.5, 1.0))
