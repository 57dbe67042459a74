"""The knob `optimizer.weight_decay`: how strongly AdamW shrinks weights towards 0 (Loshchilov & Hutter 2019,
arXiv 1711.05101). Each step subtracts rate × decay of a weight.

Parameter groups without decay (usually biases and norms) keep a decay of 0. Several groups with different decays keep
their ratios, and the first group's decay is announced. After a change the groups also store the user's own decay. It
is saved in the optimizer's state, so that a resumed run has the same bounds and ratios.
"""

from __future__ import annotations

from typing import Any

from oven_learner.actuators import Actuators

NAME = "optimizer.weight_decay"
KEY = "oven_weight_decay"
MAX_FACTOR = 10.0
"""The upper bound, as a multiple of the user's own decay."""


class WeightDecay:
    """Reads and writes the decay of an optimizer's groups."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it

    @property
    def own(self) -> float:
        """The user's own decay, of the first group with one; 0 if no group has any."""
        return next((_own(group) for group in self._groups()), 0.0)

    def read(self) -> float:
        return next((float(group["weight_decay"]) for group in self._groups()), 0.0)

    def write(self, decay: float) -> None:
        first = self.own
        for group in self._groups():
            own = group[KEY] = _own(group)
            group["weight_decay"] = decay if own == first else decay * own / first

    def _groups(self) -> list[dict[str, Any]]:
        """Look them up each time, because a rollback loads new ones."""
        return [group for group in self._optimizer.param_groups if _own(group) > 0]


def announce(optimizer: Any, actuators: Actuators) -> None:
    """Register the knob if a group has a decay, unless there is an actuator of that name."""
    knob = WeightDecay(optimizer)
    if knob.own > 0 and NAME not in actuators:
        actuators.scalar(
            NAME, knob.read, knob.write, low=0.0, high=MAX_FACTOR * knob.own, unit="× rate, of each weight in a step"
        )


def _own(group: dict[str, Any]) -> float:
    return float(group.get(KEY, group.get("weight_decay", 0.0)))
