"""`reward.weights` of a trainer with several plain reward functions: a committee has its own."""

from __future__ import annotations

import logging
from typing import Any

from oven_learner.actuators import Actuators

log = logging.getLogger("oven.learner")
WEIGHTS = "reward.weights"


def announce(trainer: Any, actuators: Actuators) -> None:
    """Shares of the user's own sum, by the functions' names; a change acts from the next generation on.

    Not announced where shares cannot say it: a negative weight (a penalty), a sum of 0, or two functions of one name.
    """
    names = tuple(getattr(trainer, "reward_func_names", ()))
    if len(names) < 2 or WEIGHTS in actuators:
        return
    weights = trainer.reward_weights  # [functions], read anew at every generation (TRL 1.16)
    total = float(weights.sum())
    if len(set(names)) < len(names) or bool((weights < 0).any()) or not total > 0:
        log.info("%s is not an actuator here: weights %s of %s are not shares", WEIGHTS, weights.tolist(), names)
        return

    def read() -> dict[str, float]:
        shares = weights.double() / float(weights.double().sum())
        return dict(zip(names, shares.tolist(), strict=True))

    def write(shares: dict[str, float]) -> None:
        weights.copy_(weights.new_tensor([shares[name] * total for name in names]))

    actuators.simplex(WEIGHTS, read, write, moves_own_metric=True)
