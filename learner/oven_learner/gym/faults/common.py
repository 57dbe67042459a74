"""What several of these faults share: which rows are hit, when they act, and when a job restarts."""

from __future__ import annotations

import torch
from torch import Tensor

from oven_learner.gym.fault import generator


def hit(count: int, share: float, *seed: object) -> Tensor:
    """Bool [count]: each is true with a chance of `share`, the same ones for the same seed."""
    return torch.rand(count, generator=generator(*seed)) < share


def within(now: int, onset: int, length: int) -> bool:
    """Whether a fault that begins at the onset and lasts for so many steps, or batches, is there now."""
    return onset <= now < onset + length


def restarted(step: int, onset: int, every: int, times: int) -> bool:
    """Whether the job comes up again at this step: at the onset, and so many times in all."""
    number, since = divmod(step - onset, every)
    return since == 0 and 0 <= number < times
