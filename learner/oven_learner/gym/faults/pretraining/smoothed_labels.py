"""Label smoothing from another recipe."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, cast

import torch

from oven_learner.gym.fault import Case, Family

if TYPE_CHECKING:
    from oven_learner.gym.pretraining.trainee import Pretraining
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Smoothed(Case):
    onset: int
    smoothing: float
    """The share of each target that is spread over the whole vocabulary."""

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        if trainee.gradient_steps < self.onset:
            return loss
        rows = cast("Pretraining", trainee)._read()
        spread: torch.Tensor = -trainee.model(rows[:, :-1]).log_softmax(-1).mean()
        return torch.lerp(loss, spread, self.smoothing)


class SmoothedLabels(Family):
    """The trainer is moved to a common set of defaults, that of a translation model, and with it comes label smoothing.
    A part of each target is spread over the vocabulary, most of which never occurs, so that the model must not be sure
    of anything. The training loss steps up and is a sum of two things from then on; what is held out is measured
    without it, and is worse for as long as it is on."""

    name = "pretraining.smoothed_labels"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Smoothed:
        return Smoothed(onset, 10 ** rng.uniform(-1.7, -0.3))
