"""Synthetic text by a weak model."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.common import hit
from oven_learner.gym.pretraining.corpus import pool

ROWS, SOURCE = 1024, 0
"""What the weak model was trained on."""


@dataclass(frozen=True)
class Synthetic(Case):
    onset: int
    length: int
    """Batches until the generated part is used up."""
    share: float
    """Of the rows."""
    order: int
    """Bytes that the weak model looks back."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not self.onset <= cursor < self.onset + self.length:
            return batch
        rows = batch.clone()
        for row in hit(len(batch), self.share, "synthetic", self.salt, cursor).nonzero().flatten().tolist():
            rows[row] = written(self.order, batch.shape[1], self.salt, cursor, row)
        return rows


def written(order: int, width: int, *seed: object) -> Tensor:
    """Int64 [width]: a chain of bytes, each drawn from what followed its `order` predecessors in the source."""
    source, places = _source(order)
    draws = torch.rand(width + 1, generator=generator("written", *seed)).tolist()
    start = int(draws[0] * (len(source) - order))
    text = source[start : start + order]
    for draw in draws[1:]:
        after = places.get(text[-order:]) or [start]
        text += source[(at := after[int(draw * len(after))]) : at + 1]
    return torch.tensor(list(text[:width]))


@lru_cache(maxsize=8)
def _source(order: int) -> tuple[bytes, dict[bytes, list[int]]]:
    """The source, and by so many bytes of it all places right behind them."""
    source = bytes(pool(ROWS, SOURCE).flatten().tolist())
    places: dict[bytes, list[int]] = {}
    for at in range(order, len(source)):
        places.setdefault(source[at - order : at], []).append(at)
    return source, places


class WeakGenerator(Family):
    """Fresh text is short, and a stretch of the corpus is filled up with text that a small model wrote. It has the
    right words and the right punctuation, and passes every filter that looks at characters, but what hangs together in
    it is a few bytes long: what the run had learnt beyond that is of no use there and fades."""

    name = "pretraining.weak_generator"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Synthetic:
        return Synthetic(
            onset,
            length=round(25 * 10 ** rng.uniform(0.0, 1.2)),
            share=rng.uniform(0.4, 1.0),
            order=rng.choice((1, 1, 1, 2, 2, 3)),
            salt=rng.getrandbits(32),
        )
