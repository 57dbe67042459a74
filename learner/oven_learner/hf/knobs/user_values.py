"""The user's own values of knobs, whose multiples are the bounds."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from oven_core.errors import ConfigError
from oven_learner.actuators import Actuators
from oven_learner.optim.lr_scale import USER_BOUNDS


class UserValues:
    """Remembers the first value of each knob: at a second `train()` the present value is a decision of the first."""

    def __init__(self) -> None:
        self._values: dict[str, float] = {}

    def scalar(
        self,
        actuators: Actuators,
        name: str,
        read: Callable[[], float],
        write: Callable[[float], object],
        *,
        unit: str,
        bounds: tuple[float, float] = USER_BOUNDS,
        scale: Literal["linear", "log"] = "log",
        most: float = float("inf"),
    ) -> None:
        """Register `name` within `bounds` times the user's value, and at most `most`, unless the user has an actuator
        of that name."""
        if name in actuators:
            return
        own = self._values.setdefault(name, read())
        low, high = own * bounds[0], min(own * bounds[1], max(own, most))
        actuators.scalar(name, read, write, low=low, high=high, scale=scale, unit=unit)


def check_trainable(trainer: Any) -> None:
    """Raise ConfigError if no parameter of the model or the optimizer would learn."""
    parameters = list(trainer.model.parameters())
    optimized = [parameter for group in trainer.optimizer.param_groups for parameter in group["params"]]
    if not any(parameter.requires_grad for parameter in parameters + optimized):
        raise ConfigError(
            f"none of the model's {len(parameters)} parameters requires a gradient, so there is nothing to train: "
            "unfreeze some (parameter.requires_grad_()), or add an adapter"
        )


def is_a(trainer: Any, name: str) -> bool:
    """Whether the trainer is of this class. Comparing names avoids importing TRL for a plain Trainer."""
    return any(cls.__name__ == name for cls in type(trainer).__mro__)
