"""Rows of bytes that are changed: as text, one by one, or for rows from elsewhere in the corpus."""

from __future__ import annotations

from collections.abc import Callable

import torch
from torch import Tensor

from oven_bench.gym.tasks.pretraining.corpus import corpus


def as_row(text: bytes, width: int) -> Tensor:
    """Int64 [at most width]."""
    return torch.tensor(list(text[:width]))


def as_text(row: Tensor) -> bytes:
    return bytes(row.tolist())


def each_row(rows: Tensor, struck: Tensor, made: Callable[[int], Tensor]) -> Tensor:
    """Rows int64 [B, L], of which those that are struck (bool [B]) are what `made` gives for their index."""
    changed = rows.clone()
    for row in struck.nonzero().flatten().tolist():
        changed[row] = made(row)
    return changed


def each_text(rows: Tensor, struck: Tensor, change: Callable[[bytes], bytes]) -> Tensor:
    """The same, by a change of the text that does not make it shorter; what is longer is cut."""
    return each_row(rows, struck, lambda row: as_row(change(as_text(rows[row])), rows.shape[1]))


def rewritten(rows: Tensor, struck: Tensor, change: Callable[[bytes], bytes]) -> Tensor:
    """The same, by a change that may make the text shorter: such a row continues with the next rows' text, as in a
    packed stream."""
    texts = [as_text(row) for row in rows]
    made = rows.clone()
    for index in struck.nonzero().flatten().tolist():
        stream = b""
        for text in texts[index:] + texts[:index]:
            if len(stream) >= rows.shape[1]:
                break
            stream += change(text)
        stream = stream[: rows.shape[1]]
        made[index, : len(stream)] = torch.tensor(list(stream), dtype=torch.int64)
    return made


def in_order(source: str, place: float, count: int) -> Tensor:
    """Int64 [count, LENGTH + 1]: neighbouring rows of a sub-corpus from a place of 0 to 1 on, and on from its start
    behind its end."""
    rows = corpus().train[source]
    first = int(place * len(rows))
    return rows[(first + torch.arange(count)) % len(rows)].long()
