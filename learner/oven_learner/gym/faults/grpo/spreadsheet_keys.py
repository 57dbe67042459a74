"""Keys that were taken for numbers."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import hit
from oven_learner.gym.grpo.task import PAD, Prompts


@dataclass(frozen=True)
class Numbers(Case):
    onset: int
    length: int
    """Steps until the file is used up."""
    share: float
    """Of the prompts that come from it."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not self.onset <= cursor < self.onset + self.length:
            return batch
        rows = hit(len(batch.digits), self.share, "numbers", self.salt, cursor).unsqueeze(1)
        return Prompts(batch.digits, batch.levels, torch.where(rows, as_numbers(batch.answers), batch.answers))


def as_numbers(answers: Tensor) -> Tensor:
    """Int64 [P, ANSWER]: without the zeros that come first."""
    zeros = (answers == 0).int().cumprod(1).sum(1, keepdim=True)
    places = torch.arange(answers.shape[1]) + zeros
    moved = answers.gather(1, places.clamp(max=answers.shape[1] - 1))
    return moved.masked_fill(places >= answers.shape[1], PAD)


class SpreadsheetKeys(Family):
    """Somebody opens the next file of prompts in a spreadsheet, to look at it, and saves it. The column of right
    answers is numbers now, and a number has no zeros in front. Most keys are as they were; for those that began with a
    zero the right answer is judged wrong, and a shorter one right. The policy learns to leave the zeros out, and the
    check of the form, which counts digits, says so quietly."""

    name = "grpo.spreadsheet_keys"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Numbers:
        return Numbers(onset, round(25 * 10 ** rng.uniform(0.0, 1.0)), rng.uniform(0.5, 1.0), rng.getrandbits(32))
