"""Rows of bytes as text, and back."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from oven_learner.gym.fault import generator


def rewritten(rows: Tensor, change: Callable[[bytes], bytes], share: float, *seed: object) -> Tensor:
    """Int64 [batch, length] with a share of the rows, drawn by the seed, changed. A row that grows is cut; one that
    shrinks goes on with the next rows' text, as in a packed stream."""
    chosen = torch.rand(len(rows), generator=generator(*seed)) < share
    texts = [bytes(row) for row in rows.tolist()]
    made = rows.clone()
    for index in chosen.nonzero().flatten().tolist():
        stream = b""
        for text in texts[index:] + texts[:index]:
            if len(stream) >= rows.shape[1]:
                break
            stream += change(text)
        stream = stream[: rows.shape[1]]
        made[index, : len(stream)] = torch.tensor(list(stream), dtype=torch.int64)
    return made
