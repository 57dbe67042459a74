"""Sources that were taken from web pages, with a number before each line."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import hit

STYLES = ("{} ", "{:4d}: ", "{:06d}|", "L{}\n")
"""Of pages: how they number their lines."""


@dataclass(frozen=True)
class Listed(Case):
    onset: int
    length: int
    """Batches until the pages are used up."""
    share: float
    """Of the rows."""
    style: str
    flat: bool
    """Whether the indentation is lost, too."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not self.onset <= cursor < self.onset + self.length:
            return batch
        rows, rng = batch.clone(), Random(repr(("lines", self.salt, cursor)))
        for row in hit(len(batch), self.share, "listed", self.salt, cursor).nonzero().flatten().tolist():
            first = round(10 ** rng.uniform(0.0, 3.3))
            text = listed(bytes(batch[row].tolist()), self.style, first, flat=self.flat)
            rows[row] = torch.tensor(list(text[: batch.shape[1]]))
        return rows


def listed(text: bytes, style: str, first: int, *, flat: bool) -> bytes:
    """Each line behind its number; the text gets longer, or stays as long."""
    size = len(text)
    lines = [style.format(first + at).encode() + line for at, line in enumerate(_lines(text, flat=flat))]
    return b"\n".join(lines).ljust(size, b"\n")


def _lines(text: bytes, *, flat: bool) -> list[bytes]:
    lines = text.split(b"\n")
    return [line.lstrip(b" \t") for line in lines] if flat else lines


class CodeListings(Family):
    """Compound: a new part of the corpus was taken from pages that show sources, and what the page puts before each
    line, its number, came along; most converters squeeze the blanks at the beginning of a line as well. To a reader it
    is the same code. The model spends itself on numbers that count up, and learns that nothing is ever indented."""

    name = "pretraining.code_listings"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Listed:
        return Listed(
            onset,
            length=round(30 * 10 ** rng.uniform(0.0, 0.9)),
            share=rng.uniform(0.4, 1.0),
            style=rng.choice(STYLES),
            flat=rng.random() < 0.75,
            salt=rng.getrandbits(32),
        )
