"""`optimizer.weight_decay`: how hard AdamW pulls weights to 0, beside the gradient (Loshchilov & Hutter 2019, arXiv
1711.05101): each step takes away rate × decay of a weight.

The parameter groups without decay (biases and norms, by the usual custom) stay without. Several groups with decays of
their own keep their ratios: what is announced is the first one's. What the user had set is kept in the groups once
something is changed: it travels in the optimizer's state, so that a resumed run finds bounds and ratios again.
"""

from __future__ import annotations

from typing import Any

from oven_learner.actuators import Actuators

NAME = "optimizer.weight_decay"
KEY = "oven_weight_decay"
TIMES, LEAST = 10.0, 0.5
"""The upper bound: so many times the user's own, and at least this."""


class WeightDecay:
    """Reads and writes the decay of an optimizer's groups; made once the optimizer exists."""

    def __init__(self, optimizer: Any) -> None:
        self._optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it

    @property
    def own(self) -> float:
        """The user's own, of the first group that has any; 0 where none does."""
        return next((_own(group) for group in self._groups()), 0.0)

    def read(self) -> float:
        return next((float(group["weight_decay"]) for group in self._groups()), 0.0)

    def write(self, decay: float) -> None:
        first = self.own
        for group in self._groups():
            own = group[KEY] = _own(group)
            group["weight_decay"] = decay if own == first else decay * own / first

    def _groups(self) -> list[dict[str, Any]]:
        """Looked up each time: a rollback loads new ones."""
        return [group for group in self._optimizer.param_groups if _own(group) > 0]


def announce(optimizer: Any, actuators: Actuators) -> None:
    """Where a group has a decay, and no one registered one."""
    knob = WeightDecay(optimizer)
    if knob.own > 0 and NAME not in actuators:
        high = max(TIMES * knob.own, LEAST)
        actuators.scalar(NAME, knob.read, knob.write, low=0.0, high=high, unit="× rate, of each weight in a step")


def _own(group: dict[str, Any]) -> float:
    return float(group.get(KEY, group.get("weight_decay", 0.0)))
