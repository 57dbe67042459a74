"""Prompts whose levels were graded anew."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import hit
from oven_learner.gym.grpo.task import LEVELS, PAD, Prompts


@dataclass(frozen=True)
class Regraded(Case):
    onset: int
    rule: str
    """Backwards: the hardest is now the first. Order: by how far the digits are from being sorted."""
    share: float
    """Of the prompts that have been graded anew."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if cursor < self.onset:
            return batch
        new = len(LEVELS) - 1 - batch.levels if self.rule == "backwards" else disorder(batch.digits)
        rows = hit(len(new), self.share, "graded", self.salt, cursor)
        return Prompts(batch.digits, torch.where(rows, new, batch.levels), batch.answers)


def disorder(digits: Tensor) -> Tensor:
    """Int64 [P], below the number of levels: by the share of pairs of digits that stand the wrong way round."""
    there = digits != PAD
    pairs = (there.unsqueeze(1) & there.unsqueeze(2)).triu(1)
    wrong = (digits.unsqueeze(2) > digits.unsqueeze(1)) & pairs
    share = wrong.sum((1, 2)) / pairs.sum((1, 2)).clamp(min=1)
    return (share * len(LEVELS)).long().clamp(max=len(LEVELS) - 1)


class RegradedLevels(Family):
    """Healthy. The user has the prompts graded anew, by another notion of what is hard, or by one that counts levels
    from the other end. Which prompts are read does not change, nor what is paid for them; only the curves by level are
    of other prompts than before. What was easy seems to be forgotten overnight, and what was hard to be solved."""

    name = "grpo.regraded_levels"
    kind = "grpo"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Regraded:
        return Regraded(onset, rng.choice(("backwards", "order")), rng.uniform(0.4, 1.0), rng.getrandbits(32))
