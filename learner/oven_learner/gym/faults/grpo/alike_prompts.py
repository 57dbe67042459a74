"""Prompts that are all much alike."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.common import hit
from oven_learner.gym.grpo.task import ANSWER, END, PAD, Prompts


@dataclass(frozen=True)
class Alike(Case):
    onset: int
    length: int
    """Steps until the set is used up."""
    share: float
    """Of the prompts."""
    kinds: int
    """Digits that the new prompts are made of."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not self.onset <= cursor < self.onset + self.length:
            return batch
        allowed = torch.randperm(10, generator=generator("allowed", self.salt))[: self.kinds]
        rows = hit(len(batch.digits), self.share, "alike", self.salt, cursor).unsqueeze(1)
        digits = torch.where(rows, narrowed(batch.digits, allowed), batch.digits)
        return Prompts(digits, batch.levels, answered(digits))


def narrowed(digits: Tensor, allowed: Tensor) -> Tensor:
    """Int64 [P, PROMPT]: each digit becomes one of those allowed."""
    return torch.where(digits == PAD, digits, allowed[digits % len(allowed)])


def answered(digits: Tensor) -> Tensor:
    """Int64 [P, ANSWER]: the digits in order, END, then PAD."""
    ordered = torch.nn.functional.pad(digits.sort(1).values, (0, ANSWER - digits.shape[1]), value=PAD)
    return ordered.scatter(1, (digits != PAD).sum(1, keepdim=True), END)


class AlikePrompts(Family):
    """The next set of prompts was written by a model, which comes back to the same few subjects over and over. Each
    prompt is right and new, and so is its answer. The policy does well on them, better by the day, and what the set
    leaves out it unlearns, or never learns: the reward goes up, and no gauge of training says on what."""

    name = "grpo.alike_prompts"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Alike:
        return Alike(
            onset,
            length=round(25 * 10 ** rng.uniform(0.0, 1.0)),
            share=rng.uniform(0.5, 1.0),
            kinds=rng.randint(2, 6),
            salt=rng.getrandbits(32),
        )
