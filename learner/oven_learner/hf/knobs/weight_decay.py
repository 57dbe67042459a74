"""`optimizer.weight_decay` of a trainer's optimizer (oven_learner.optim.weight_decay)."""

from __future__ import annotations

from typing import Any

from oven_learner.actuators import Actuators
from oven_learner.optim import weight_decay


def announce(trainer: Any, actuators: Actuators) -> None:
    """DeepSpeed's optimizers keep groups of their own."""
    if not trainer.is_deepspeed_enabled:
        weight_decay.announce(trainer.optimizer, actuators)
