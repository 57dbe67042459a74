"""Gradients that are too small for the numbers that carry them."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from oven_learner.gym.fault import Case, Family

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Underflow(Case):
    onset: int
    spacing: float
    """Between the smallest numbers that there are."""
    flush: bool
    """Whether what lies below the first of them is 0, as on devices without subnormal numbers, or is rounded."""

    def gradients(self, trainee: Trainee) -> None:
        if trainee.gradient_steps < self.onset:
            return
        for parameter in trainee.model.parameters():
            if parameter.grad is None:
                continue
            if self.flush:
                parameter.grad.masked_fill_(parameter.grad.abs() < self.spacing, 0.0)
            else:
                parameter.grad.div_(self.spacing).round_().mul_(self.spacing)


class GradientUnderflow(Family):
    """Gradients go over the wire, or come out of the backward pass, in few bits, and the scale that should lift them
    into their range was lost in a restart or is meant for larger ones: the small ones vanish, and the rare bytes and
    late layers that they belong to learn no more, while the norm hardly changes (Micikevicius et al. 2018, "Mixed
    Precision Training", on gradients that become zero without a loss scale)."""

    name = "pretraining.gradient_underflow"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Underflow:
        return Underflow(onset, 2.0 ** rng.uniform(-12.0, -3.0), rng.random() < 0.5)
