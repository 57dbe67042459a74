"""Muon in float32: torch's to bfloat16's precision, and singular values near 1."""

from __future__ import annotations

import pytest
import torch
from torch import nn

from oven_learner.optim.float32_muon import Float32Muon, orthogonalise


@pytest.mark.parametrize("shape", [(8, 32), (32, 8), (16, 16)])
def test_singular_values_are_near_one(shape: tuple[int, int]) -> None:
    matrix = torch.randn(shape, generator=torch.Generator().manual_seed(1))
    values = torch.linalg.svdvals(orthogonalise(matrix))
    assert values.min() > 0.5 and values.max() < 1.3
    assert orthogonalise(torch.zeros(shape)).abs().max() == 0, "no gradient is no update"


@pytest.mark.skipif(not hasattr(torch.optim, "Muon"), reason="torch.optim.Muon came with torch 2.9")
def test_float32_muon_matches_torchs_muon_up_to_precision() -> None:
    generator = torch.Generator().manual_seed(2)
    ours, theirs = (nn.Parameter(torch.ones(24, 12)) for _ in range(2))
    optimizers = [Float32Muon([ours], lr=0.02), torch.optim.Muon([theirs], lr=0.02, weight_decay=0.0)]
    for _ in range(3):
        gradient = torch.randn(24, 12, generator=generator)
        for weight, optimizer in zip((ours, theirs), optimizers, strict=True):
            weight.grad = gradient.clone()
            optimizer.step()
    moved = (theirs - 1).norm()
    assert moved > 0.1
    assert (ours - theirs).norm() / moved < 0.02
