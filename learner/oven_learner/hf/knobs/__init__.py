"""The knobs that a trainer has, one family a file: `announce` registers those that act on this trainer, live.

Left out on purpose: gradient accumulation. transformers 5.23 reads `args.gradient_accumulation_steps` live for how many
micro-batches it fetches (trainer.py:1862) and, against a count of them that runs on over the epoch, for when it steps
(1882): after a change the optimizer steps within a fetched group unless the count happens to be a multiple of the new
value, with losses that were scaled for a whole one. The epoch's length and the place that a checkpoint resumes from
are counted with one value for all of it (1700, 1859).
"""

from __future__ import annotations

from oven_learner.hf.knobs import beta, clipping, epsilon, mixture, reward_weights, skip, weight_decay
from oven_learner.hf.knobs.mixture import Mixture
from oven_learner.hf.knobs.own import UsersOwn, check_trainable

__all__ = [
    "Mixture",
    "UsersOwn",
    "beta",
    "check_trainable",
    "clipping",
    "epsilon",
    "mixture",
    "reward_weights",
    "skip",
    "weight_decay",
]
