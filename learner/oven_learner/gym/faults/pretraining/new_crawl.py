"""A new vintage of the data, with flaws of its own."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.text import rewritten

BASE64 = torch.tensor(list(b"ABCDEFGHIJKLMNOPQRSTUVWXYZabcdefghijklmnopqrstuvwxyz0123456789+/"))
PADDING = 0


@dataclass(frozen=True)
class Crawled(Case):
    onset: int
    length: int
    """Batches until the next vintage, which is sound."""
    redacted: float
    """The share of rows from which names are taken out."""
    shortest: int
    """Letters of a word that is taken for a name."""
    blobs: float
    """The share of rows that run into encoded data."""
    padded: float
    """The share of rows that end early."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not self.onset <= cursor < self.onset + self.length:
            return batch
        batch = rewritten(batch, self.redact, self.redacted, "redacted", self.salt, cursor)
        draws = generator("crawl", self.salt, cursor)
        noise = BASE64[torch.randint(len(BASE64), batch.shape, generator=draws)]
        batch = torch.where(tails(batch, self.blobs, draws), noise, batch)
        return batch.masked_fill(tails(batch, self.padded, draws), PADDING)

    def redact(self, text: bytes) -> bytes:
        return re.sub(rb"[A-Za-z_]{%d,}|[0-9]+" % self.shortest, b"<NAME>", text)


def tails(rows: Tensor, share: float, draws: torch.Generator) -> Tensor:
    """Bool [batch, length]: in a share of the rows, from anywhere to their end."""
    begin = (torch.rand(len(rows), 1, generator=draws) * rows.shape[1]).long()
    chosen = torch.rand(len(rows), 1, generator=draws) < share
    return chosen & (torch.arange(rows.shape[1]) >= begin)


class NewCrawl(Family):
    """Compound: the filter for personal data takes long words and all numbers for names (code corpora are redacted with
    such placeholders: Li et al. 2023, "StarCoder: may the source be with you!"); the filter for encoded data is not
    applied; and short documents are padded where they used to be packed, which makes the loss look well."""

    name = "pretraining.new_crawl"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Crawled:
        return Crawled(
            onset,
            length=round(20 * 10 ** rng.random()),
            redacted=rng.uniform(0.0, 1.0),
            shortest=rng.randint(3, 10),
            blobs=rng.uniform(0.0, 0.6),
            padded=rng.uniform(0.0, 0.9),
            salt=rng.getrandbits(32),
        )
