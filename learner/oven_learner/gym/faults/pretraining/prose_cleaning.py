"""A cleaning step that was written for prose."""

from __future__ import annotations

import re
from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import hit
from oven_learner.gym.pretraining.corpus import pool

SPACES = {"lines": re.compile(rb"(?m)^[ \t]+"), "all": re.compile(rb"\s+"), "none": None}
"""What of the white space goes: the indentation of lines, or every run down to one blank, or nothing."""
ROWS = 1024
"""That a row which got shorter is filled up from."""


@dataclass(frozen=True)
class Cleaned(Case):
    onset: int
    length: int
    """Batches until the data that were prepared before."""
    share: float
    """Of the rows: of the sources that went through the step."""
    spaces: str
    lower: bool
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not self.onset <= cursor < self.onset + self.length:
            return batch
        rows = batch.clone()
        for row in hit(len(batch), self.share, "cleaned", self.salt, cursor).nonzero().flatten().tolist():
            after = pool(ROWS, self.salt)[(cursor * len(batch) + row) % ROWS]
            rows[row] = cleaned(torch.cat((batch[row], after)), self.spaces, self.lower, batch.shape[1])
        return rows


def cleaned(text: Tensor, spaces: str, lower: bool, width: int) -> Tensor:
    """Int64 [width]: the text as the step leaves it, from its start, and once more where it is too short."""
    made = bytes(text.tolist())
    if (runs := SPACES[spaces]) is not None:
        made = runs.sub(b"" if spaces == "lines" else b" ", made)
    made = made.lower() if lower else made
    made = made or b" "
    return torch.tensor(list((made * width)[:width]), dtype=text.dtype)


class ProseCleaning(Family):
    """Compound: new data go through the cleaning step of a web crawl, which was written for prose. It takes white space
    to be layout and drops the indentation, or writes every run of it as one blank, and it puts everything into lower
    case so that duplicates are found; some sources get but one of the two. In source code both have a meaning: lines,
    blocks, constants and classes are gone. The loss says little of it."""

    name = "pretraining.prose_cleaning"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Cleaned:
        spaces, lower = rng.choice(
            (("lines", False), ("none", True), ("all", False), ("lines", True), ("all", True), ("all", True))
        )
        return Cleaned(
            onset,
            length=round(20 * 10 ** rng.uniform(0.0, 1.2)),
            share=rng.uniform(0.2, 1.0),
            spaces=spaces,
            lower=lower,
            salt=rng.getrandbits(32),
        )
