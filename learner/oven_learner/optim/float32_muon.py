"""Muon (Jordan et al. 2024) that computes in its matrices' own precision.

`torch.optim.Muon` orthogonalises in bfloat16, which processors without it emulate: on one with AVX2 alone that took
more than half of a small model's training.
"""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import Tensor

COEFFICIENTS: Final = (3.4445, -4.775, 2.0315)
"""Of the quintic iteration, as torch has them: the steepest at 0 that brings singular values near 1."""
ITERATIONS: Final = 5
MOMENTUM: Final = 0.95
LEAST_NORM: Final = 1e-7


class Float32Muon(torch.optim.Optimizer):
    """Muon with Nesterov's momentum and without weight decay, for 2-D weights."""

    def __init__(self, matrices: Iterable[Tensor], lr: float) -> None:
        """Raises ValueError for a weight that is not a matrix."""
        chosen = list(matrices)
        if other := [tuple(one.shape) for one in chosen if one.ndim != 2]:
            raise ValueError(f"Muon is for matrices, and this weight has the shape {other[0]}; give it to AdamW")
        super().__init__(chosen, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Moves each matrix that has a gradient by its learning rate along the orthogonalised momentum."""
        if closure is not None:
            raise ValueError("this optimizer takes no closure: the loss is evaluated by who calls it")
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(matrix.grad)
                momentum = state["momentum_buffer"].lerp_(matrix.grad, 1 - MOMENTUM)
                update = orthogonalised(matrix.grad.lerp(momentum, MOMENTUM))
                rows, columns = matrix.shape
                matrix.add_(update, alpha=-group["lr"] * math.sqrt(max(1, rows / columns)))


def orthogonalised(matrix: Tensor) -> Tensor:
    """The matrix with its singular values brought near 1, by Newton and Schulz's iteration in its own precision."""
    a, b, c = COEFFICIENTS
    tall = matrix.shape[0] > matrix.shape[1]
    found = matrix.T if tall else matrix
    found = found / found.norm().clamp(min=LEAST_NORM)
    for _ in range(ITERATIONS):
        gram = found @ found.T
        found = torch.addmm(found, torch.addmm(gram, gram, gram, beta=b, alpha=c), found, beta=a)
    return found.T if tall else found
