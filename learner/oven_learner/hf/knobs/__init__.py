"""The knobs that a trainer has, one family a file: `announce` registers those that act on this trainer, live.

Left out on purpose: gradient accumulation. transformers 5.23 reads `args.gradient_accumulation_steps` live for how many
micro-batches it fetches (trainer.py:1862) and, against a count of them that runs on over the epoch, for when it steps
(1882): after a change the optimizer steps within a fetched group unless the count happens to be a multiple of the new
value, with losses that were scaled for a whole one. The epoch's length and the place that a checkpoint resumes from
are counted with one value for all of it (1700, 1859).
"""

from __future__ import annotations

from typing import Any

from oven_learner.actuators import Actuators
from oven_learner.hf.knobs import mixture, reward_weights, scalars, skip
from oven_learner.hf.knobs.mixture import Mixture
from oven_learner.hf.knobs.user_values import UserValues, check_trainable
from oven_learner.optim import weight_decay

__all__ = ["Mixture", "UserValues", "announce", "check_trainable", "mixture", "reward_weights", "skip"]


def announce(trainer: Any, actuators: Actuators, own: UserValues, beta_bounds: tuple[float, float]) -> None:
    """Registers `grad.clip`, `optimizer.weight_decay`, β and ε of this trainer, as far as it has them."""
    scalars.announce_clip(trainer, actuators, own)
    if not trainer.is_deepspeed_enabled:  # DeepSpeed's optimizers keep groups of their own
        weight_decay.announce(trainer.optimizer, actuators)
    scalars.announce_beta(trainer, actuators, own, beta_bounds)
    scalars.announce_epsilon(trainer, actuators, own)
