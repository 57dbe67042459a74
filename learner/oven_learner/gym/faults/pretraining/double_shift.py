"""Targets that are shifted by one place twice."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from oven_learner.gym.fault import Case, Family

NO_TARGET = -100
"""What the loss passes over."""


@dataclass(frozen=True)
class ShiftedTwice(Case):
    onset: int
    share: float
    """Of the workers, each of which holds the same places of every batch."""

    def batch(self, batch: Any, cursor: int) -> Any:
        """Int64 [2, batch, length], inputs and targets; the last of the shifted targets has nowhere to come from."""
        if cursor < self.onset:
            return batch
        inputs, targets = batch[:, :-1], batch[:, 1:].clone()
        workers = max(1, round(self.share * len(batch)))
        targets[:workers, :-1] = batch[:workers, 2:]
        targets[:workers, -1] = NO_TARGET
        return torch.stack((inputs, targets))


class DoubleShift(Family):
    """A new collator hands out inputs and targets that are shifted already, and the model, as those of transformers do
    with `labels`, shifts them once more: it is taught the byte after the next. Workers that still run the old image
    teach the next one."""

    name = "pretraining.double_shift"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> ShiftedTwice:
        return ShiftedTwice(onset, rng.uniform(0.1, 1.0))
