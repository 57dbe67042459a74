"""Shards that were encoded with another version of the vocabulary."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator

TOKENS = 256


@dataclass(frozen=True)
class Shifted(Case):
    onset: int
    length: int
    """Batches until the next shards of the right version."""
    share: float
    """Of the rows."""
    place: int
    """The first token that has moved."""
    added: int
    """By how much: the tokens that were put in there."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not self.onset <= cursor < self.onset + self.length:
            return batch
        chosen = torch.rand(len(batch), 1, generator=generator("vocabulary", self.salt, cursor)) < self.share
        return torch.where(chosen, moved(batch, self.place, self.added), batch)


def moved(tokens: Tensor, place: int, added: int) -> Tensor:
    """Int64 of any shape; what falls off at the end comes in at the front."""
    return torch.where(tokens >= place, (tokens + added) % TOKENS, tokens)


class ShiftedVocabulary(Family):
    """A new release of the tokenizer puts a few special tokens in front of or amid the others, and a part of the corpus
    is encoded anew with it: every later number means another token. All numbers are valid, the text is as regular as
    ever, and it is a different language to the model, which begins to learn it beside its own."""

    name = "pretraining.shifted_vocabulary"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Shifted:
        return Shifted(
            onset,
            length=round(10 * 10 ** rng.uniform(0.0, 1.3)),
            share=rng.uniform(0.1, 1.0),
            place=rng.choice((0, 32, 48, 97, 108)),
            added=rng.randint(1, 8),
            salt=rng.getrandbits(32),
        )
