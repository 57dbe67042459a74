"""`grad.clip`: the gradient norm above which gradients are scaled down."""

from __future__ import annotations

from typing import Any

from oven_learner.actuators import Actuators
from oven_learner.hf.knobs.user_values import UserValues


def announce(trainer: Any, actuators: Actuators, own: UserValues) -> None:
    """Where the trainer clips; DeepSpeed does it by itself, from a configuration read once."""
    args = trainer.args
    if args.max_grad_norm and args.max_grad_norm > 0 and not trainer.is_deepspeed_enabled:
        own.scalar(
            actuators,
            "grad.clip",
            lambda: float(args.max_grad_norm),
            lambda value: setattr(args, "max_grad_norm", value),
            unit="norm",
        )
