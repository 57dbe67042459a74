"""A stretch of documents that say the same few bytes over and over."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.text import rewritten


@dataclass(frozen=True)
class Repeated(Case):
    onset: int
    batches: int
    share: float
    width: int
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not self.onset <= cursor < self.onset + self.batches:
            return batch
        return rewritten(batch, self.repeat, self.share, "repeated", self.salt, cursor)

    def repeat(self, text: bytes) -> bytes:
        return (text[: self.width] * len(text))[: len(text)]


class RepeatedNgrams(Family):
    """Generated tables, padding that was written out, separators: rows of one n-gram, which a quality filter should
    have dropped. Such sequences were found at the spikes of a large run and are masked since (OLMo 2, "2 OLMo 2
    Furious", 2025)."""

    name = "pretraining.repeated_ngrams"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Repeated:
        return Repeated(onset, rng.randint(8, 100), rng.uniform(0.3, 1.0), rng.randint(1, 8), rng.getrandbits(32))
