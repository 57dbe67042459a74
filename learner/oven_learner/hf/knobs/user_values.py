"""What the user had set: the bounds of a knob are multiples of it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Literal

from oven_core.errors import ConfigError
from oven_learner.actuators import Actuators
from oven_learner.optim.lr_scale import USER_BOUNDS


class UserValues:
    """Remembers each value as it first was: a second `train()` finds what was decided in the first, and that is not
    what the user set."""

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
        """Announces `name` within `bounds` times the user's value, and `most` at the most. An actuator of the user's
        own under that name goes before it."""
        if name in actuators:
            return
        own = self._values.setdefault(name, read())
        low, high = own * bounds[0], min(own * bounds[1], max(own, most))
        actuators.scalar(name, read, write, low=low, high=high, scale=scale, unit=unit)


def check_trainable(trainer: Any) -> None:
    """Raises ConfigError where no parameter would learn, of the model or of an optimizer that the user made."""
    held = list(trainer.model.parameters())
    given = [parameter for group in trainer.optimizer.param_groups for parameter in group["params"]]
    if not any(parameter.requires_grad for parameter in held + given):
        raise ConfigError(
            f"none of the model's {len(held)} parameters requires a gradient, so there is nothing to train: unfreeze "
            "some (parameter.requires_grad_()), or add an adapter"
        )


def is_a(trainer: Any, name: str) -> bool:
    """By name, so that a plain Trainer's process need not import TRL."""
    return any(cls.__name__ == name for cls in type(trainer).__mro__)
