"""The Muon optimizer (Jordan et al. 2024), computed in the precision of its matrices. `torch.optim.Muon` orthogonalises
in bfloat16, which is slow on processors that have to emulate it."""

from __future__ import annotations

import math
from collections.abc import Iterable
from typing import Any, Final

import torch
from torch import Tensor

COEFFICIENTS: Final = (3.4445, -4.775, 2.0315)
"""Coefficients of the Newton-Schulz polynomial of degree 5, as in torch. They have the steepest slope at 0 that still
brings singular values near 1."""
ITERATIONS: Final = 5
MOMENTUM: Final = 0.95
MIN_NORM: Final = 1e-7


class Float32Muon(torch.optim.Optimizer):
    """Muon with Nesterov momentum and without weight decay, for 2-D weights."""

    def __init__(self, matrices: Iterable[Tensor], lr: float) -> None:
        """Raises ValueError for a weight that is not a matrix."""
        weights = list(matrices)
        for weight in weights:
            if weight.ndim != 2:
                raise ValueError(
                    f"Muon only supports matrices, but a weight has the shape {tuple(weight.shape)}; use AdamW for it"
                )
        super().__init__(weights, {"lr": lr})

    @torch.no_grad()
    def step(self, closure: Any = None) -> Any:
        """Move each matrix with a gradient along its orthogonalised momentum, scaled by the learning rate."""
        if closure is not None:
            raise ValueError("Float32Muon does not support a closure; compute the gradients before calling step()")
        for group in self.param_groups:
            for matrix in group["params"]:
                if matrix.grad is None:
                    continue
                state = self.state[matrix]
                if not state:
                    state["momentum_buffer"] = torch.zeros_like(matrix.grad)
                momentum = state["momentum_buffer"].lerp_(matrix.grad, 1 - MOMENTUM)
                update = orthogonalise(matrix.grad.lerp(momentum, MOMENTUM))
                rows, columns = matrix.shape  # the factor below is the same as in torch.optim.Muon
                matrix.add_(update, alpha=-group["lr"] * math.sqrt(max(1, rows / columns)))


def orthogonalise(matrix: Tensor) -> Tensor:
    """Return the matrix with singular values near 1, by Newton-Schulz iteration in its own precision."""
    a, b, c = COEFFICIENTS
    is_tall = matrix.shape[0] > matrix.shape[1]
    result = matrix.T if is_tall else matrix
    result = result / result.norm().clamp(min=MIN_NORM)
    for _ in range(ITERATIONS):
        gram = result @ result.T  # the next line computes a X + (b G + c G²) X, with X = result and G = gram
        result = torch.addmm(result, torch.addmm(gram, gram, gram, beta=b, alpha=c), result, beta=a)
    return result.T if is_tall else result
