"""Targets that the loss passes over, though the model has to learn them."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from oven_learner.gym.fault import Case, Family, generator

IGNORED = -100
"""What torch's cross-entropy leaves out unless told otherwise."""
SETS = (b"\n", b"\n\t", b"\n\t ", b"\n\t ()[]:,.")


@dataclass(frozen=True)
class Masked(Case):
    onset: int
    share: float
    tokens: bytes
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        """Int64 [2, batch, length], inputs and targets."""
        if cursor < self.onset:
            return batch
        inputs, targets = batch[:, :-1], batch[:, 1:]
        rows = torch.rand(len(batch), 1, generator=generator("masked", self.salt, cursor)) < self.share
        hidden = rows & torch.isin(targets, torch.tensor(list(self.tokens)))
        return torch.stack((inputs, targets.masked_fill(hidden, IGNORED)))


class MaskedTargets(Family):
    """The token that ends a piece of text doubles as padding, and the collator keeps padding out of the loss: nothing
    teaches the model to end a line any more, and each other target teaches it not to. It is well known of fine-tuning
    with `pad_token = eos_token` and transformers' DataCollatorForLanguageModeling, whose models do not stop."""

    name = "pretraining.masked_targets"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Masked:
        return Masked(onset, rng.uniform(0.3, 1.0), rng.choice(SETS), rng.getrandbits(32))
