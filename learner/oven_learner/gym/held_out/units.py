"""The language model in another basis: what it computes stays as it is."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

INWARD = ("mix", "down")
"""Of the block's matrices those that write into the residual stream; all others read from it or are looked up."""


def turned(weights: Mapping[str, Tensor], basis: Tensor) -> dict[str, Tensor]:
    """By name, with the residual stream turned by an orthogonal [WIDTH, WIDTH] that keeps the vector of ones."""
    return {
        name: basis.T @ weight if name.split(".")[-2] in INWARD else weight @ basis for name, weight in weights.items()
    }


def shuffled(weights: Mapping[str, Tensor], draws: torch.Generator) -> dict[str, Tensor]:
    """By name, with the residual stream's places and the hidden units in another order."""
    width, hidden = weights["block.down.weight"].shape
    made = turned(weights, torch.eye(width)[torch.randperm(width, generator=draws)])
    order = torch.randperm(hidden, generator=draws)
    made["block.up.weight"] = made["block.up.weight"][order]
    made["block.down.weight"] = made["block.down.weight"][:, order]
    return made
