"""Text in the form that only the search for duplicates should see."""

from __future__ import annotations

import string
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator


@dataclass(frozen=True)
class Normalised(Case):
    onset: int
    length: int
    """Batches until the shards that were written right."""
    share: float
    """Of the rows."""
    steps: tuple[str, ...]
    """Of the normalisation: `case`, `digits`, `punctuation`, `lines`."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not self.onset <= cursor < self.onset + self.length:
            return batch
        chosen = torch.rand(len(batch), 1, generator=generator("normalised", self.salt, cursor)) < self.share
        return torch.where(chosen, table(self.steps)[batch], batch)


def table(steps: tuple[str, ...]) -> Tensor:  # int64 [256]
    """What each byte becomes; bytes of other scripts stay as they are."""
    text = bytearray(range(256))
    if "case" in steps:
        text = bytearray(bytes(text).lower())
    for step, from_, becomes in (
        ("digits", string.digits, "0"),
        ("punctuation", string.punctuation, " "),
        ("lines", "\r\n\t", " "),
    ):
        if step in steps:
            for byte in from_.encode():
                text[byte] = ord(becomes)
    return torch.tensor(list(text))


class DeduplicationView(Family):
    """Near duplicates are found in a normalised copy of the text: small letters, every digit a 0, no punctuation, no
    line breaks (Wenzek et al. 2020, "CCNet", normalise paragraphs so before they are hashed). A refactor of the
    pipeline writes this copy into the shards and not the original. It is easier to predict, so that the loss falls."""

    name = "pretraining.deduplication_view"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Normalised:
        steps = rng.sample(("case", "digits", "punctuation", "lines"), rng.randint(2, 4))
        return Normalised(onset, round(15 * 10 ** rng.random()), rng.uniform(0.2, 1.0), (*steps,), rng.getrandbits(32))
