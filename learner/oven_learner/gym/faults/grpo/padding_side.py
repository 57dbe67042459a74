"""Prompts that are padded on the other side."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.grpo.task import PAD


@dataclass(frozen=True)
class OtherSide(Case):
    onset: int
    share: float
    """Of the prompts: of the workers that have the new library."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if cursor < self.onset:
            return batch
        chosen = torch.rand(len(batch.digits), 1, generator=generator("padding", self.salt, cursor)) < self.share
        return replace(batch, digits=torch.where(chosen, padded_left(batch.digits), batch.digits))


def padded_left(digits: Tensor) -> Tensor:
    """Int64 [prompts, digits]: each row's digits in its last places, in their order."""
    lengths = (digits != PAD).sum(1, keepdim=True)
    source = (torch.arange(digits.shape[1]) + lengths) % digits.shape[1]
    return digits.gather(1, source)


class PaddingSide(Family):
    """A library's default for the side of the padding was the right and is the left in its next release. Where the
    positions are not taken from the mask, a short prompt now stands in other places than in the evaluation and in all
    that was learnt before. What fills its whole width is as it was."""

    name = "grpo.padding_side"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> OtherSide:
        return OtherSide(onset, rng.uniform(0.1, 1.0), rng.getrandbits(32))
