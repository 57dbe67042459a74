"""Text whose lines were sorted."""

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

ROWS = 4096
"""Of text, whose lines are sorted together."""


@dataclass(frozen=True)
class Sorted(Case):
    onset: int
    length: int
    """Batches until the sorted part is used up."""
    share: float
    """Of the rows."""
    shuffled: bool
    """Whether the rows were put into another order after they were cut."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not self.onset <= cursor < self.onset + self.length:
            return batch
        rows = batch.clone()
        lines = in_order(batch.shape[1], self.salt, self.shuffled)
        first = cursor * len(batch)
        for row in hit(len(batch), self.share, "sorted", self.salt, cursor).nonzero().flatten().tolist():
            rows[row] = lines[(first + row) % len(lines)]
        return rows


def by_line(text: bytes) -> bytes:
    """Each line once, in the order of the bytes."""
    return b"\n".join(sorted(set(text.split(b"\n"))))


@lru_cache(maxsize=8)
def in_order(width: int, salt: int, shuffled: bool) -> Tensor:
    """Int64 [rows, width], cut from sorted lines."""
    text = by_line(bytes(pool(ROWS, salt).flatten().tolist()))
    rows = torch.tensor(list(text[: len(text) // width * width])).view(-1, width)
    return rows[torch.randperm(len(rows), generator=generator("rows", salt))] if shuffled else rows


class SortedLines(Family):
    """Somebody takes duplicates out of a new part of the corpus with the tool at hand, which sorts a file's lines and
    keeps each once. Every line is good text, and no filter finds anything; but none follows from the one before, the
    common ones are all but gone, and a row is a list of lines that begin alike. The loss goes down, for beginnings are
    easy to say, and what a line has to do with the next is unlearnt."""

    name = "pretraining.sorted_lines"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Sorted:
        return Sorted(
            onset,
            length=round(30 * 10 ** rng.uniform(0.0, 1.0)),
            share=rng.uniform(0.6, 1.0),
            shuffled=rng.random() < 0.3,
            salt=rng.getrandbits(32),
        )
