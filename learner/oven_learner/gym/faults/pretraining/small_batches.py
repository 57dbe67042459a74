"""Batches shrink to a few rows from the onset on: every gauge is noisy, and nothing is wrong."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.severity import whole
from oven_learner.gym.trainee import Kind


@dataclass(frozen=True)
class Small(Case):
    onset: int
    rows: int

    def batch(self, batch: torch.Tensor, cursor: int) -> torch.Tensor:
        return batch[: self.rows] if cursor >= self.onset else batch


class SmallBatches(Family):
    name: ClassVar[str] = "pretraining.small_batches"
    kind: ClassVar[Kind] = "pretraining"
    healthy: ClassVar[bool] = True

    def draw(self, rng: Random, onset: int) -> Small:
        return Small(onset, whole(rng, 4, 1))
