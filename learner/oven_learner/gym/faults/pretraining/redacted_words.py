"""Words that a filter for private data has made unreadable."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import hit


@dataclass(frozen=True)
class Redacted(Case):
    onset: int
    length: int
    """Batches until the filter is put right."""
    share: float
    """Of the rows: those of the files that went through the filter."""
    least: int
    """Letters of a word that is taken for a name or a secret."""
    mark: str
    """What stands in place of each letter."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not self.onset <= cursor < self.onset + self.length:
            return batch
        rows = batch.clone()
        for row in hit(len(batch), self.share, "redacted", self.salt, cursor).nonzero().flatten().tolist():
            rows[row] = torch.tensor(list(redacted(bytes(rows[row].tolist()), self.least, self.mark)))
        return rows


def redacted(text: bytes, least: int, mark: str) -> bytes:
    """As long as it was."""
    return re.sub(rb"[A-Za-z_]{%d,}" % least, lambda word: mark.encode() * len(word[0]), text)


class RedactedWords(Family):
    """Before a new part of the corpus may be used it has to pass a filter for private data. Its rules were made for
    letters from customers; in source code it takes most identifiers for names, and blackens them letter by letter. The
    text is clean, its layout is whole, and it is very easy to go on with a mark after a mark. The loss goes down, and
    the model forgets how words are spelt."""

    name = "pretraining.redacted_words"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Redacted:
        return Redacted(
            onset,
            length=round(15 * 10 ** rng.uniform(0.0, 1.1)),
            share=rng.uniform(0.4, 1.0),
            least=rng.choice((3, 4, 5, 6, 8)),
            mark=rng.choice("x*#X"),
            salt=rng.getrandbits(32),
        )
