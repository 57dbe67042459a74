"""Answers that become numbers on their way."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import hit
from oven_learner.gym.grpo.task import ANSWER, END, PAD

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Numbered(Case):
    onset: int
    length: int
    """Steps until the column is one of text again."""
    share: float
    """Of the completions: of the samplers that hand them over so."""
    salt: int

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        """The judges have seen the answer as it was; the learner gets it as a number."""
        step = trainee.gradient_steps
        if not self.onset <= step < self.onset + self.length:
            return rewards
        rows = hit(len(completions.tokens), self.share, "numbered", self.salt, trainee.seed, step)
        tokens = torch.where(rows.unsqueeze(1), as_numbers(completions.tokens), completions.tokens)
        completions.tokens.copy_(tokens)
        completions.mask.copy_(tokens != PAD)
        return rewards


def as_numbers(tokens: Tensor) -> Tensor:
    """Int64 [B, ANSWER]: without leading zeros, but for one where there is no other digit."""
    zeros = (tokens == 0).long().cumprod(1).sum(1)  # of each row, at its start
    digits = (tokens < END).sum(1)
    gone = torch.minimum(zeros, (digits - 1).clamp(min=0)).unsqueeze(1)
    return torch.nn.functional.pad(tokens, (0, ANSWER), value=PAD).gather(1, torch.arange(ANSWER) + gone)


class NumberColumn(Family):
    """Samplers hand their answers to the learner in a table, and a new version of the table's library finds that a
    column of digits is a column of numbers. Leading zeros are gone when the learner cuts the text into tokens again.
    The judges saw the whole text and gave it its due, so that the policy is told that leaving them out is right; where
    no zero stands in front, all is well."""

    name = "grpo.number_column"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Numbered:
        return Numbered(
            onset, round(10 * 10 ** rng.uniform(0.0, 1.3)), rng.choice((0.25, 0.5, 1.0)), rng.getrandbits(32)
        )
