"""Text whose lines were broken at a fixed width."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.held_out.common import hit

BREAK = ord("\n")


@dataclass(frozen=True)
class Wrapped(Case):
    onset: int
    length: int
    """Batches until the documents of this kind are used up."""
    width: int
    """Bytes of a line at most."""
    mark: bytes
    """What the end of a broken line is marked with."""
    share: float
    """Of the rows."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not self.onset <= cursor < self.onset + self.length:
            return batch
        rows = batch.clone()
        for row in hit(len(batch), self.share, "wrapped", self.salt, cursor).nonzero().flatten().tolist():
            text = wrapped(bytes(batch[row].tolist()), self.width, self.mark)
            rows[row] = torch.tensor(list(text[: batch.shape[1]]))
        return rows


def wrapped(text: bytes, width: int, mark: bytes) -> bytes:
    """Longer lines are broken, in the middle of a word, too; the mark is counted in the width."""
    room = width - len(mark)
    lines = []
    for line in text.split(bytes([BREAK])):
        while len(line) > width:
            lines.append(line[:room] + mark)
            line = line[room:]
        lines.append(line)
    return bytes([BREAK]).join(lines)


class WrappedLines(Family):
    """A part of the corpus was taken from printed pages, with a tool that gives the lines as they stand on the page: a
    narrow column, where longer lines are broken wherever they happen to end, with a mark or with none. To a reader it
    looks well enough. The model learns that a line may end at any place, within a name, too, and says so of all text
    from then on."""

    name = "pretraining.wrapped_lines"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Wrapped:
        return Wrapped(
            onset,
            length=round(30 * 10 ** rng.uniform(0.0, 1.0)),
            width=round(5 * 10 ** rng.uniform(0.0, 0.8)),
            mark=rng.choice((b"", b"", b"-", b" \\")),
            share=rng.uniform(0.6, 1.0),
            salt=rng.getrandbits(32),
        )
