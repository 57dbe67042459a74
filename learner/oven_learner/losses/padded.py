"""Lists of tokens as tensors."""

from __future__ import annotations

from collections.abc import Sequence

import torch
from torch import Tensor


def padded(rows: Sequence[Sequence[int]], device: torch.device, *, left: bool = False) -> tuple[Tensor, Tensor]:
    """Ids and mask, (rows, the longest's length). What pads has the id 0, which every vocabulary has."""
    longest = max(map(len, rows))
    ids = torch.zeros((len(rows), longest), dtype=torch.long)
    mask = torch.zeros_like(ids)
    for row, tokens in enumerate(rows):
        at = slice(longest - len(tokens), longest) if left else slice(0, len(tokens))
        ids[row, at] = torch.tensor(tokens, dtype=torch.long)
        mask[row, at] = 1
    return ids.to(device), mask.to(device)
