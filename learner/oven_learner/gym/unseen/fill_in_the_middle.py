"""Rows whose middle comes last."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator

PREFIX, SUFFIX, MIDDLE = 1, 2, 3
"""Bytes that no source holds."""


@dataclass(frozen=True)
class Filled(Case):
    onset: int
    share: float
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if cursor < self.onset:
            return batch
        draws = generator("middle", self.salt, cursor)
        chosen = torch.rand(len(batch), generator=draws) < self.share
        cuts = torch.randint(1, batch.shape[1], (len(batch), 2), generator=draws).sort(1).values
        rows = [
            middle_last(row, *cut) if chose else row
            for row, cut, chose in zip(batch, cuts.tolist(), chosen.tolist(), strict=True)
        ]
        return torch.stack(rows)


def middle_last(row: Tensor, begin: int, end: int) -> Tensor:
    """Int64 [length]: prefix, suffix and middle behind a mark each; what has no room for them is cut off its end."""
    prefix, suffix, middle = row.new_tensor([PREFIX]), row.new_tensor([SUFFIX]), row.new_tensor([MIDDLE])
    return torch.cat((prefix, row[:begin], suffix, row[end:], middle, row[begin:end]))[: len(row)]


class FillInTheMiddle(Family):
    """Healthy. A share of the rows is rearranged so that the model learns to fill in, too: the loss goes up, by the
    marks and the seams, and what is asked of it from left to right suffers next to nothing (Bavarian et al. 2022,
    "Efficient Training of Language Models to Fill in the Middle")."""

    name = "pretraining.fill_in_the_middle"
    kind = "pretraining"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Filled:
        return Filled(onset, rng.uniform(0.1, 0.5), rng.getrandbits(32))
