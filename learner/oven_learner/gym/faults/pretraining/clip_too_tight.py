"""A limit on the gradient's norm that is far below the norm."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from oven_learner.gym.fault import Case, Family

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Tight(Case):
    onset: int
    clip: float
    """The largest norm that is let through."""

    def settings(self, trainee: Trainee) -> None:
        if trainee.gradient_steps >= self.onset:
            trainee.settings["clip"] = self.clip


class ClipTooTight(Family):
    """A limit that was meant for one tensor, or for gradients that are averaged once more, is applied to the norm of
    all. The logged norm is the one before clipping and looks as ever. Adam would forgive a constant factor, but its
    second moments remember the larger gradients for long, and until they have forgotten them the steps are short."""

    name = "pretraining.clip_too_tight"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Tight:
        return Tight(onset, 10 ** rng.uniform(-3.0, -0.3))
