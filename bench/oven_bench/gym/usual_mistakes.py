"""Mistakes that every kind of run meets; a family says how large they are, and what they look like there."""

from __future__ import annotations

import math
from random import Random
from typing import Self

from torch import Tensor

from oven_bench.gym.fault import Fault, Step


class FromTheStart(Fault):
    """It is there before the first step."""

    @classmethod
    def draw(cls, rng: Random, onset: int) -> Self:
        return super().draw(rng, 0)


class MultipliedRate(Fault):
    """The user's learning rate is `factor` times what it should be."""

    factor: float

    def settings(self, step: Step) -> None:
        step.settings["learning_rate"] *= self.factor


class DividedRate(FromTheStart):
    """The user's learning rate has been too low by `divisor` from the start."""

    divisor: float

    def settings(self, step: Step) -> None:
        step.settings["learning_rate"] *= 1 / self.divisor


class MultipliedDecay(Fault):
    """The user's weight decay is `factor` times what it should be."""

    factor: float

    def settings(self, step: Step) -> None:
        step.settings["weight_decay"] *= self.factor


class SetClip(Fault):
    """The gradient is clipped to the norm `clip`."""

    clip: float

    def settings(self, step: Step) -> None:
        step.settings["clip"] = self.clip


class LossNotANumber(Fault):
    """The loss is not a number."""

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        return loss * math.nan
