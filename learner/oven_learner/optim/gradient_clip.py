"""`grad.clip` in the user's own loop: gradients are clipped to this norm just before the optimizer's step."""

from __future__ import annotations

import math
from typing import Any

import torch

from oven_core.errors import ConfigError
from oven_learner.actuators import Actuators
from oven_learner.optim import update_norm
from oven_learner.optim.pre_update_hook import before_update

NAME = "grad.clip"


class Clip:
    """Clips like `torch.nn.utils.clip_grad_norm_` over all weights of the optimizer, with the same arithmetic."""

    def __init__(self, norm: float) -> None:
        """Raises ConfigError if `norm` is not a positive number."""
        if not (math.isfinite(norm) and norm > 0):
            raise ConfigError(f"clip={norm:g} is not a gradient norm; give one above 0, or leave it out")
        self.norm = norm

    def announce(self, actuators: Actuators, bounds: tuple[float, float]) -> None:
        """Register the knob, with `bounds` as multiples of the initial norm, unless the user has an actuator of that
        name."""
        if NAME not in actuators:
            low, high = (bound * self.norm for bound in bounds)
            actuators.scalar(
                NAME, lambda: self.norm, lambda norm: setattr(self, "norm", norm), low=low, high=high, scale="log",
                unit="norm",
            )  # fmt: skip

    def always(self, optimizer: Any) -> Any:
        """Clip before each step from now on. Return the handle that removes the hook."""
        optimizer = getattr(optimizer, "optimizer", optimizer)  # accelerate wraps it
        return before_update(optimizer, lambda _: self.apply(optimizer, gradient_norm(optimizer)))

    def apply(self, optimizer: Any, norm: torch.Tensor | None) -> None:
        """Clip the gradients. `norm` is their norm without the factor of a gradient scaler."""
        if norm is not None:
            torch.nn.utils.clip_grads_with_norm_(_with_gradients(optimizer), self.norm, norm)


@torch.no_grad()
def gradient_norm(optimizer: Any) -> torch.Tensor | None:
    """Return the norm of all gradients as one vector, on their device; None without gradients.

    The factor of a gradient scaler is divided out if that is left to a fused optimizer. A collective if gradients are
    sharded.
    """
    gradients = [parameter.grad for parameter in _with_gradients(optimizer) if parameter.grad is not None]
    if not gradients:
        return None
    norm = torch.nn.utils.get_total_norm(gradients)
    if hasattr(norm, "full_tensor"):
        norm = norm.full_tensor()
    factor = getattr(optimizer, "grad_scale", None)
    return norm / factor.to(norm.device) if isinstance(factor, torch.Tensor) else norm


def _with_gradients(optimizer: Any) -> list[torch.nn.Parameter]:
    return [parameter for parameter in update_norm.trained(optimizer) if parameter.grad is not None]
