"""Prompts that are cut to a length that is too short for some."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.grpo.task import PAD


@dataclass(frozen=True)
class Cut(Case):
    onset: int
    limit: int
    """Digits that are left, the last ones."""
    share: float
    """Of the prompts: of the workers that have the limit."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if cursor < self.onset:
            return batch
        chosen = torch.rand(len(batch.digits), 1, generator=generator("cut", self.salt, cursor)) < self.share
        return replace(batch, digits=torch.where(chosen, last(batch.digits, self.limit), batch.digits))


def last(digits: Tensor, limit: int) -> Tensor:
    """Int64 [prompts, digits]: the last ones of each prompt from the first place on, then padding."""
    places = torch.arange(digits.shape[1])
    lengths = (digits != PAD).sum(1, keepdim=True)
    source = places + (lengths - limit).clamp(min=0)
    kept = digits.gather(1, source.clamp(max=digits.shape[1] - 1))
    return kept.masked_fill(places >= lengths.clamp(max=limit), PAD)


class CutPrompts(Family):
    """A limit on the prompt's length, set in a configuration for shorter ones, cuts the beginning off without a word:
    what is asked for can no longer be known from what is left, and a cut prompt looks like an honest short one, whose
    answer is another."""

    name = "grpo.cut_prompts"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Cut:
        return Cut(onset, rng.choice((2, 3, 4)), rng.uniform(0.1, 1.0), rng.getrandbits(32))
