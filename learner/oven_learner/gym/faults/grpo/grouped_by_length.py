"""Steps of prompts of one length each."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.grpo.task import PAD

DIGITS = 10


@dataclass(frozen=True)
class Grouped(Case):
    onset: int
    share: float
    """Of the prompts of a step that are of its length; the others are as they were drawn."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        """The length is that of one of the prompts that were drawn, so that each comes as often as in the mixture."""
        if cursor < self.onset:
            return batch
        source = generator("grouped", self.salt, cursor)
        digits, levels, answers = batch.digits, batch.levels, batch.answers
        one = int(torch.randint(len(digits), (), generator=source))
        length = int((digits[one] != PAD).sum())
        drawn = torch.full_like(digits, PAD)
        drawn[:, :length] = torch.randint(DIGITS, (len(digits), length), generator=source)
        solved = answers[one].repeat(len(digits), 1)
        solved[:, :length] = drawn[:, :length].sort(1).values
        grouped = torch.rand(len(digits), generator=source) < self.share
        return replace(
            batch,
            digits=torch.where(grouped[:, None], drawn, digits),
            levels=torch.where(grouped, levels[one], levels),
            answers=torch.where(grouped[:, None], solved, answers),
        )


class GroupedByLength(Family):
    """Healthy. Prompts are put together by length to waste no time on padding (transformers' `group_by_length`): the
    reward jumps from step to step with the length's difficulty, and over many steps each comes as often as before."""

    name = "grpo.grouped_by_length"
    kind = "grpo"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Grouped:
        return Grouped(onset, rng.uniform(0.4, 1.0), rng.getrandbits(32))
