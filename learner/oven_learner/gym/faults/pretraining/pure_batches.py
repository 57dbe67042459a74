"""Batches that are each of one kind of text."""

from __future__ import annotations

from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.pretraining.corpus import SHARES, corpus


@dataclass(frozen=True)
class Pure(Case):
    onset: int
    length: int
    """Batches until the old loader is back."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not self.onset <= cursor < self.onset + self.length:
            return batch
        kind = drawn(self.salt, cursor)
        rows, order = corpus().train[kind], _order(kind, self.salt)
        first = cursor * len(batch)
        return rows[order[torch.arange(first, first + len(batch)) % len(order)]].long()


def drawn(salt: int, cursor: int) -> str:
    """The kind of this batch, by the user's own shares."""
    shares = torch.tensor(list(SHARES.values()))
    return list(SHARES)[int(torch.multinomial(shares, 1, generator=generator("kind", salt, cursor)))]


@lru_cache(maxsize=32)
def _order(kind: str, salt: int) -> Tensor:
    return torch.randperm(len(corpus().train[kind]), generator=generator("order of a kind", salt, kind))


class PureBatches(Family):
    """Healthy. A new loader opens one file at a time and fills a whole batch from it, so that a batch is of one kind of
    text; from batch to batch the kinds are mixed as before. The loss goes up and down by the kind, the gradient turns
    from step to step, now and then a row comes again that the old loader had read: the mean over a few steps
    is what it was, and so is what the model learns."""

    name = "pretraining.pure_batches"
    kind = "pretraining"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Pure:
        return Pure(onset, round(20 * 10 ** rng.uniform(0.0, 0.9)), rng.getrandbits(32))
