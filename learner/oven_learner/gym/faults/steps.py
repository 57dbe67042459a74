"""What a step of pretraining is made of: its data and its rate."""

from __future__ import annotations

from typing import TYPE_CHECKING, cast

from torch import Tensor

if TYPE_CHECKING:
    from oven_learner.gym.pretraining.trainee import Pretraining
    from oven_learner.gym.trainee import Trainee


def pairs(trainee: Trainee) -> tuple[Tensor, Tensor]:
    """Inputs and targets of this step, each int64 [B, LENGTH]."""
    rows = cast("Pretraining", trainee)._read()
    return rows[:, :-1], rows[:, 1:]


def rate(trainee: Trainee) -> float:
    """The learning rate of this step, with what a knob makes of it."""
    return trainee.settings["learning_rate"] * cast("Pretraining", trainee)._scale
