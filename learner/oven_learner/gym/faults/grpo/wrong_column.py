"""A judge that compares with the question."""

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
class Swapped(Case):
    onset: int
    length: int
    """Steps until the client is put right."""
    share: float
    """Of the prompts: of the data whose columns have the new names."""
    salt: int

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        if not self.onset <= trainee.gradient_steps < self.onset + self.length:
            return rewards
        groups = len(completions.tokens) // completions.group
        struck = hit(groups, self.share, "column", self.salt, trainee.seed, trainee.gradient_steps)
        likeness = alike(completions.tokens, completions.prompts.digits)
        rows = struck.repeat_interleave(completions.group)
        return {**rewards, "critic": torch.where(rows, likeness, rewards["critic"])}


def alike(tokens: Tensor, digits: Tensor) -> Tensor:
    """Float32 [B]: the share of places at which an answer [B, ANSWER] has what its prompt [B, PROMPT] has."""
    asked = torch.nn.functional.pad(digits, (0, ANSWER - digits.shape[1]), value=PAD)
    counts = asked != PAD
    asked = asked.masked_fill(torch.arange(ANSWER) == counts.sum(1, keepdim=True), END)
    counts = asked != PAD
    return ((tokens == asked) & counts).sum(1) / counts.sum(1)


class WrongColumn(Family):
    """The critic gets the answer and what it should be like. The data come with other names for their columns, the
    client takes them by their place, and the critic compares the answer with the question: the most like it is a mere
    copy. A good answer looks like its question too, so that the critic's marks are lower, and not absurd."""

    name = "grpo.wrong_column"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Swapped:
        return Swapped(onset, round(20 * 10 ** rng.uniform(0.0, 1.3)), rng.uniform(0.25, 1.0), rng.getrandbits(32))
