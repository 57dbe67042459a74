"""A stretch of the corpus that says almost nothing."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.common import hit, within


@dataclass(frozen=True)
class Logged(Case):
    onset: int
    length: int
    """Batches that it stretches over."""
    form: bytes
    """Of a line, with three numbers."""
    share: float
    """Of the rows."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not within(cursor, self.onset, self.length):
            return batch
        rows = batch.clone()
        for row in hit(len(batch), self.share, "logged", self.salt, cursor).nonzero().flatten().tolist():
            rows[row] = torch.tensor(list(log(self.form, batch.shape[1], generator("log", self.salt, cursor, row))))
        return rows


def log(form: bytes, length: int, draws: torch.Generator) -> bytes:
    """So many bytes of it, from a random place in a line on."""
    begin, *numbers = torch.randint(60, (1 + 3 * length,), generator=draws).tolist()
    lines = [form % tuple(numbers[at : at + 3]) for at in range(0, length, 3)]
    whole = b"".join(lines)
    begin %= len(lines[0])
    return whole[begin : begin + length]


class LogLines(Family):
    """Healthy. Among the files of the corpus are a few long logs and listings, and as shards are not perfectly mixed
    their rows come close together. They are next to certain but for some numbers: the loss falls as if the answers had
    leaked, so does the gradient, and when they are over both jump back up, as if something had broken. Nothing had. The
    other rows of the batches were the usual ones, and a form of line is soon learnt and takes little room."""

    name = "pretraining.log_lines"
    kind = "pretraining"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Logged:
        return Logged(
            onset,
            length=round(4 * 10 ** rng.uniform(0.0, 0.6)),
            form=rng.choice(
                (b"10:%02d:%02d INFO worker %02d ok\n", b"%4d %4d %4d\n", b"[%02d.%02d%02d] usb 1-1: reset\n")
            ),
            share=rng.uniform(0.2, 0.5),
            salt=rng.getrandbits(32),
        )
