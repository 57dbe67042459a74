"""Pages of two columns that were read across."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import hit


@dataclass(frozen=True)
class Across(Case):
    onset: int
    length: int
    """Batches until the documents that were extracted right."""
    share: float
    """Of the pages: of those that have two columns."""
    width: int
    """Bytes of a column's line."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not self.onset <= cursor < self.onset + self.length:
            return batch
        pages = len(batch) // 2
        left, right, rest = batch[:pages], batch[pages : 2 * pages], batch[2 * pages :]
        struck = hit(pages, self.share, "columns", self.salt, cursor).unsqueeze(1)
        top, bottom = read_across(left, right, self.width)
        return torch.cat((torch.where(struck, top, left), torch.where(struck, bottom, right), rest))


def read_across(left: Tensor, right: Tensor, width: int) -> tuple[Tensor, Tensor]:
    """Each [pages, bytes]: a line of the left column, then one of the right, and so on down the page, whose upper half
    and lower half are given back."""
    line = torch.arange(left.shape[1]) // width
    order = torch.cat((2 * line, 2 * line + 1)).argsort(stable=True)
    page = torch.cat((left, right), 1)[:, order]
    return page[:, : left.shape[1]], page[:, left.shape[1] :]


class TwoColumns(Family):
    """A batch of papers goes through a text extractor that knows nothing of columns, and reads each line from the left
    edge of the page to the right. Every word is a right one and every character is common, so that the filters let it
    pass, but the text jumps to another place every few words, and nothing says where."""

    name = "pretraining.two_columns"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Across:
        return Across(
            onset,
            length=round(25 * 10 ** rng.uniform(0.0, 1.2)),
            share=rng.uniform(0.3, 1.0),
            width=round(2 * 10 ** rng.uniform(0.0, 1.0)),
            salt=rng.getrandbits(32),
        )
