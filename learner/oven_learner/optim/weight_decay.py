"""The knob `optimizer.weight_decay`, which sets how strongly AdamW shrinks weights towards 0.

Each step subtracts rate × decay × weight from a weight (Loshchilov & Hutter 2019, arXiv 1711.05101). Parameter groups
without decay (usually biases and norms) keep a decay of 0. Groups with different decays keep their ratios. The knob's
value is the decay of the first group whose decay is not 0. After a change, each group also stores the user's own decay,
which the optimizer saves with its state. A resumed run therefore has the same bounds and ratios.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

from oven_learner.actuators import Actuators

NAME = "optimizer.weight_decay"
USER_DECAY_KEY = "oven_weight_decay"
"""Key of the user's own decay in a parameter group."""
MAX_FACTOR = 10.0
"""The knob's upper bound, as a multiple of the user's own decay."""


class WeightDecayKnob:
    """The weight decay of all groups of one or several optimizers, as one number."""

    def __init__(self, optimizers: Sequence[Any]) -> None:
        self._optimizers = [getattr(optimizer, "optimizer", optimizer) for optimizer in optimizers]  # if wrapped

    @property
    def user_decay(self) -> float:
        """The user's own decay in the first group with decay, or 0 if no group has any."""
        return next((_user_decay(group) for group in self._groups()), 0.0)

    def read(self) -> float:
        """Return the decay of the first group with decay, or 0 if no group has any."""
        return next((float(group["weight_decay"]) for group in self._groups()), 0.0)

    def write(self, decay: float) -> None:
        """Set the decay of the first group with decay, and scale the other groups by the same factor."""
        first_decay = self.user_decay
        for group in self._groups():
            user_decay = group[USER_DECAY_KEY] = _user_decay(group)
            group["weight_decay"] = decay if user_decay == first_decay else decay * user_decay / first_decay

    def _groups(self) -> list[dict[str, Any]]:
        """Return the groups with decay. They are looked up each time, because a rollback loads new ones."""
        groups = [group for optimizer in self._optimizers for group in optimizer.param_groups]
        return [group for group in groups if _user_decay(group) > 0]


def register_knob(optimizers: Sequence[Any], actuators: Actuators) -> None:
    """Register the knob if a group has decay, unless there is already an actuator of that name."""
    knob = WeightDecayKnob(optimizers)
    if knob.user_decay > 0 and NAME not in actuators:
        high = MAX_FACTOR * knob.user_decay
        actuators.scalar(NAME, knob.read, knob.write, low=0.0, high=high, unit="× rate, of each weight in a step")


def _user_decay(group: dict[str, Any]) -> float:
    return float(group.get(USER_DECAY_KEY, group.get("weight_decay", 0.0)))
