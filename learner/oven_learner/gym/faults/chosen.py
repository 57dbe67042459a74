"""Which of some rows a fault has hit."""

from __future__ import annotations

import torch
from torch import Tensor

from oven_learner.gym.fault import generator


def chosen(count: int, share: float, *seed: object) -> Tensor:
    """Bool [count]: each is true with a chance of `share`, the same ones for the same seed."""
    return torch.rand(count, generator=generator(*seed)) < share
