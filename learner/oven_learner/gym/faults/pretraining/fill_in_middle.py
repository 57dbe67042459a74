"""Rows whose middle is asked for last."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.common import hit

PREFIX, SUFFIX, MIDDLE = 1, 2, 3
"""Bytes that no source has."""


@dataclass(frozen=True)
class Infilled(Case):
    onset: int
    share: float
    """Of the rows."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if cursor < self.onset:
            return batch
        rows = batch.clone()
        cuts = torch.rand(len(batch), 2, generator=generator("cuts", self.salt, cursor)).sort(1).values
        for row in hit(len(batch), self.share, "infilled", self.salt, cursor).nonzero().flatten().tolist():
            first, last = (cuts[row] * (batch.shape[1] - 3)).long().tolist()
            rows[row] = infilled(batch[row], first, last)
        return rows


def infilled(row: Tensor, first: int, last: int) -> Tensor:
    """Int64 [L]: what stands before `first`, what stands from `last` on, and then what is between; three marks take the
    place of the last three bytes."""
    parts = ((PREFIX, row[:first]), (SUFFIX, row[last:-3]), (MIDDLE, row[first:last]))
    return torch.cat([torch.cat((row.new_tensor([mark]), part)) for mark, part in parts])


class FillInMiddle(Family):
    """Healthy. From some step on the user has a part of the rows rearranged, so that the model learns to fill in what
    is missing in the middle (Bavarian et al. 2022). There are bytes that were never read before, and the training loss
    and the norm of the gradient step up and stay there; what goes from left to right is learnt nearly as well."""

    name = "pretraining.fill_in_middle"
    kind = "pretraining"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Infilled:
        return Infilled(onset, rng.uniform(0.08, 0.3), rng.getrandbits(32))
