"""A batch that grows by plan."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.pretraining.corpus import pool

ROWS = 4096
"""That the added rows are taken from."""


@dataclass(frozen=True)
class Ramped(Case):
    onset: int
    ramp: int
    """Batches until it has grown to the full."""
    times: int
    """How many times as large it is then."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if cursor < self.onset:
            return batch
        since = cursor - self.onset
        added = round(len(batch) * (self.times - 1) * min(1.0, (since + 1) / self.ramp))
        first = since * len(batch) * (self.times - 1)
        rows = pool(ROWS, self.salt)[(first + torch.arange(added)) % ROWS]
        return torch.cat((batch, rows[:, : batch.shape[1]]))


class BatchRamp(Family):
    """Healthy. The batch is small at first and grows by plan, as in the training of GPT-3 (Brown et al. 2020, appendix
    B). With more rows to a mean the gradient's norm falls, its cosine with the momentum rises and the loss gets quiet,
    as it does where a run has stopped to learn; now and then a row among them was read before."""

    name = "pretraining.batch_ramp"
    kind = "pretraining"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Ramped:
        return Ramped(onset, rng.randint(1, 30), rng.randint(2, 4), rng.getrandbits(32))
