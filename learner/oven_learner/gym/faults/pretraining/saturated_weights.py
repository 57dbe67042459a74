"""Weights that the number format has no room for."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from oven_learner.gym.fault import Case, Family

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Saturated(Case):
    onset: int
    length: int
    """Steps until the scales are measured anew."""
    largest: float
    """Number that the format has room for, at the scale that was set."""
    parts: tuple[str, ...]
    """What is kept in the format, by the start of the name."""

    def weights(self, trainee: Trainee) -> None:
        if not self.onset <= trainee.gradient_steps < self.onset + self.length:
            return
        for name, parameter in trainee.model.named_parameters():
            if name.startswith(self.parts):
                parameter.clamp_(-self.largest, self.largest)


class SaturatedWeights(Family):
    """To save memory the weights are kept in eight bits, with one scale for all that was measured on a model that had
    just been started. What has grown beyond it since is cut off at the largest number after each step, so that the most
    useful weights are the ones that are held back. The loss jumps, and goes down again as the others take over, until
    the scales are measured anew."""

    name = "pretraining.saturated_weights"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Saturated:
        return Saturated(
            onset,
            length=round(10 * 10 ** rng.uniform(0.0, 1.3)),
            largest=10 ** rng.uniform(-2.1, -0.9),
            parts=rng.choice((("",), ("out.",), ("out.", "bytes."))),
        )
