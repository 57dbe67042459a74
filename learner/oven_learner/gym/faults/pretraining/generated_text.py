"""Text that a small model wrote."""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from functools import lru_cache
from random import Random
from typing import Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import hit
from oven_learner.gym.pretraining.corpus import pool

ROWS, WRITTEN = 1024, 1024
"""Read by the small model, and written by it."""


@dataclass(frozen=True)
class Generated(Case):
    onset: int
    length: int
    """Batches until the part is used up."""
    share: float
    """Of the rows."""
    memory: int
    """Bytes that the small model looks back."""
    sure: float
    """How often it says what is likeliest, instead of drawing."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not self.onset <= cursor < self.onset + self.length:
            return batch
        rows, text = batch.clone(), written(batch.shape[1], self.memory, self.sure, self.salt)
        for row in hit(len(batch), self.share, "generated", self.salt, cursor).nonzero().flatten().tolist():
            rows[row] = text[(cursor * len(batch) + row) % len(text)]
        return rows


@lru_cache(maxsize=8)
def written(width: int, memory: int, sure: float, salt: int) -> Tensor:
    """Int64 [WRITTEN, width], by a table of what followed what."""
    follows: dict[tuple[int, ...], list[int]] = {}
    read = pool(ROWS, salt).flatten().tolist()
    for at in range(memory, len(read)):
        follows.setdefault(tuple(read[at - memory : at]), []).append(read[at])
    likeliest = {context: Counter(after).most_common(1)[0][0] for context, after in follows.items()}
    rng, text = Random(repr(("written", salt))), read[:memory]
    for _ in range(WRITTEN * width):
        context = tuple(text[-memory:])
        after = follows.get(context) or read
        text.append(likeliest[context] if context in likeliest and rng.random() < sure else rng.choice(after))
    return torch.tensor(text[memory:]).view(WRITTEN, width)


class GeneratedText(Family):
    """A part of the new data was not written by people: sites have filled their pages with what a cheap model says.
    Each line looks like the real thing, and passes every filter for quality; nothing in it goes on for longer than the
    cheap model remembers. The loss falls where that model was careful, for it says the likeliest thing over and over,
    and what is rare or far apart is unlearnt."""

    name = "pretraining.generated_text"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Generated:
        return Generated(
            onset,
            length=round(30 * 10 ** rng.uniform(0.0, 0.9)),
            share=rng.uniform(0.4, 1.0),
            memory=rng.choice((1, 1, 2, 2, 3)),
            sure=rng.uniform(0.2, 0.95),
            salt=rng.getrandbits(32),
        )
