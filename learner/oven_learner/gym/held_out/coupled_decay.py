"""A weight decay that goes through the gradient."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, cast

from oven_learner.gym.fault import Case, Family

if TYPE_CHECKING:
    from oven_learner.gym.pretraining.trainee import Pretraining
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Coupled(Case):
    onset: int
    strength: float
    """In units of the decay that is set."""
    parts: tuple[str, ...]
    """What the decay is for, by the start of the name."""

    def gradients(self, trainee: Trainee) -> None:
        if trainee.gradient_steps < self.onset:
            return
        decay = self.strength * cast("Pretraining", trainee)._knob("weight_decay")
        for name, parameter in trainee.model.named_parameters():
            if name.startswith(self.parts) and parameter.grad is not None:
                parameter.grad.add_(parameter, alpha=decay)


class CoupledDecay(Family):
    """The optimizer is taken from another library, and its argument for the weight decay means what it meant before
    Loshchilov and Hutter (2019): the weights are added to the gradient. Adam divides the sum by its size, so that a
    number that was mild when it was decoupled pulls every weight with little gradient of its own to nought, at the full
    rate. What is rare is forgotten first. The norm of the gradient rises a little and that of the weights falls for as
    long as the run goes on."""

    name = "pretraining.coupled_decay"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Coupled:
        return Coupled(
            onset,
            strength=10 ** rng.uniform(-1.5, 0.7),
            parts=rng.choice((("",), ("",), ("bytes.", "positions."), ("block.", "out."))),
        )
