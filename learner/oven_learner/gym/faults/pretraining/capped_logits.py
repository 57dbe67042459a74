"""Logits that are capped where the model is trained, and nowhere else."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch
from torch.nn import functional as F

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.steps import pairs

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Capped(Case):
    onset: int
    cap: float

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        if trainee.gradient_steps < self.onset:
            return loss
        inputs, targets = pairs(trainee)
        return F.cross_entropy(capped(trainee.model(inputs), self.cap).flatten(0, 1), targets.flatten())


def capped(logits: torch.Tensor, cap: float) -> torch.Tensor:
    """Within −cap to cap, smoothly."""
    return cap * (logits / cap).tanh()


class CappedLogits(Family):
    """The loss is replaced by a fused kernel, which was written for a family of models that cap their logits softly, as
    Gemma 2 does, and does so unless it is told not to. What measures and serves the model caps nothing. The training
    loss rises a little and goes on falling; to say under the cap what it knows, the model needs ever larger logits, and
    where the cap is missing it is far too sure of itself."""

    name = "pretraining.capped_logits"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Capped:
        return Capped(onset, 10 ** rng.uniform(0.35, 1.1))
