"""Text of one source, in the order in which it lies on the disk."""

from __future__ import annotations

import torch
from torch import Tensor

from oven_learner.gym.pretraining.corpus import corpus


def in_order(source: str, place: float, count: int) -> Tensor:
    """Int64 [count, length + 1]: neighbouring rows of a sub-corpus from a place of 0 to 1 on, and on from its start
    behind its end."""
    rows = corpus().train[source]
    first = int(place * len(rows))
    return rows[(first + torch.arange(count)) % len(rows)].long()
