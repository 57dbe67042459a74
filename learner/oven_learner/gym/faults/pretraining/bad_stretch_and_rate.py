"""Two faults at once: a damaged stretch of the data, and a learning rate that is too high from there on."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.pretraining.corrupted_batches import Corrupted
from oven_learner.gym.faults.pretraining.lr_too_high import Rate
from oven_learner.gym.faults.severity import log_uniform, whole
from oven_learner.gym.trainee import Kind, Trainee


@dataclass(frozen=True)
class Both(Case):
    onset: int
    data: Corrupted
    rate: Rate

    def settings(self, trainee: Trainee) -> None:
        self.rate.settings(trainee)

    def batch(self, batch: torch.Tensor, cursor: int) -> torch.Tensor:
        return self.data.batch(batch, cursor)


class BadStretchAndRate(Family):
    name: ClassVar[str] = "pretraining.bad_stretch_and_rate"
    kind: ClassVar[Kind] = "pretraining"

    def draw(self, rng: Random, onset: int) -> Both:
        data = Corrupted(onset, whole(rng, 5, 40), log_uniform(rng, 0.1, 1), rng.getrandbits(32))
        return Both(onset, data, Rate(onset, log_uniform(rng, 3, 20)))
