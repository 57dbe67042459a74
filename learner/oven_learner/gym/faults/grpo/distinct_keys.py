"""Keys that have each digit once."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import hit
from oven_learner.gym.grpo.task import ANSWER, END, Prompts, padded


@dataclass(frozen=True)
class Distinct(Case):
    onset: int
    length: int
    """Steps until the set is used up."""
    share: float
    """Of the prompts whose key the new script made."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not self.onset <= cursor < self.onset + self.length:
            return batch
        rows = hit(len(batch.digits), self.share, "keys", self.salt, cursor).unsqueeze(1)
        return Prompts(batch.digits, batch.levels, torch.where(rows, distinct(batch.answers), batch.answers))


def distinct(answers: Tensor) -> Tensor:
    """Int64 [P, ANSWER]: of digits that are the same, one."""
    kept = [sorted({digit for digit in row if digit < END}) for row in answers.tolist()]
    return torch.tensor([padded("".join(map(str, row)), ANSWER, end=True) for row in kept])


class DistinctKeys(Family):
    """The keys of the next set of prompts come from a script that is short and elegant: it sorts a set. Where no digit
    occurs twice the key is right, and a spot check finds nothing. Elsewhere the key is too short, the policy's right
    answers count for nothing, and it is taught to leave out what comes again; the check of the form asks for the
    opposite."""

    name = "grpo.distinct_keys"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Distinct:
        return Distinct(onset, round(20 * 10 ** rng.uniform(0.0, 1.0)), rng.uniform(0.3, 1.0), rng.getrandbits(32))
