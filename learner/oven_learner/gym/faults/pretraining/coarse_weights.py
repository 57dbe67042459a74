"""Weights that are kept in too few bits."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.trainee import Kind, Trainee


@dataclass(frozen=True)
class Rounding(Case):
    onset: int
    bits: float

    @torch.no_grad()
    def weights(self, trainee: Trainee) -> None:
        if trainee.gradient_steps < self.onset:
            return
        for parameter in trainee.model.parameters():
            significand, exponent = torch.frexp(parameter)
            levels = 2.0**self.bits
            parameter.copy_(torch.ldexp((significand * levels).round() / levels, exponent))


class CoarseWeights(Family):
    """From a restart on there is no master copy of the weights in full precision: after each step they are rounded to
    the nearest of few values. What an update adds below half a unit in the last place is lost, so that most weights
    stand still though gradients and rate look as ever.

    Zamirai et al. 2020 (Revisiting BFloat16 Training, arXiv 2010.06192): nearest rounding of the weights cancels small
    updates. A larger model at a smaller rate meets it with bfloat16's 8 bits; this one needs fewer.
    """

    name: ClassVar[str] = "pretraining.coarse_weights"
    kind: ClassVar[Kind] = "pretraining"

    def draw(self, rng: Random, onset: int) -> Case:
        return Rounding(onset, rng.uniform(2.5, 6.5))
