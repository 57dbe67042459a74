"""Files that several processes wrote at once."""

from __future__ import annotations

from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.pretraining.corpus import SHARES, corpus, pool

ROWS = 4096
"""Of text, which the other processes write."""


@dataclass(frozen=True)
class Interleaved(Case):
    onset: int
    length: int
    """Batches until the part is used up."""
    sources: tuple[str, ...]
    """The sub-corpora that were fetched in this way."""
    writers: int
    block: int
    """Bytes that a process writes at a time."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not self.onset <= cursor < self.onset + self.length:
            return batch
        others, first = pool(ROWS, self.salt), cursor * len(batch) * self.writers
        rows = batch.clone()
        for row, text in enumerate(batch):
            if any(bytes(text.tolist()) in texts(source) for source in self.sources):
                more = (torch.arange(1, self.writers) + first + row * self.writers) % len(others)
                rows[row] = interleaved(torch.cat([text.unsqueeze(0), others[more]]), self.block)
        return rows


def interleaved(rows: Tensor, block: int) -> Tensor:
    """Int64 [L] of [writers, L]: so many bytes of the first, of the second, …, and on with the first."""
    places = torch.arange(rows.shape[1])
    turns = places // block
    return rows[turns % len(rows), turns // len(rows) * block + places % block]


@cache
def texts(source: str) -> frozenset[bytes]:
    """The rows of a sub-corpus."""
    return frozenset(bytes(row) for row in corpus().train[source].numpy())


class SeveralWriters(Family):
    """The job that fetches one or more of the sources is started with several workers, and all of them append to the
    same file. What the operating system writes at one time is a block of one worker's text, then comes a block of
    another's. Nothing is lost and no byte is wrong, but words break off in the middle, and what a byte depends on
    stands far from it. The other sources are as they were."""

    name = "pretraining.several_writers"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Interleaved:
        return Interleaved(
            onset,
            length=round(20 * 10 ** rng.uniform(0.0, 1.0)),
            sources=tuple(sorted(rng.sample([*SHARES], rng.choice((1, 2, 3, 4, 4))))),
            writers=rng.choice((2, 3, 4)),
            block=rng.choice((1, 1, 2, 3, 6)),
            salt=rng.getrandbits(32),
        )
