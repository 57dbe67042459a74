"""Gauges of the optimizer itself: what the loss does not show of how well the learning rate fits."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

import torch
from transformers import Trainer

from oven_controller.messages import MetricSpec

CHUNK = 2**24
"""Elements that are multiplied at a time: the products take memory that training may not have to spare."""
ALIGNMENT = MetricSpec(name="optim/grad_momentum_cos", unit="cosine, −1 to 1")


def measurable(trainer: Trainer) -> bool:
    """Only whole tensors: a sharded rank sees its part of the gradient, and its cosine is another number."""
    return not (trainer.is_fsdp_enabled or trainer.is_deepspeed_enabled)


@torch.no_grad()
def alignment(trainer: Trainer) -> torch.Tensor | None:
    """Cosine between this step's gradient and Adam's first moment before it (all parameters as one vector).

    One pass over gradients and moments; the scalar stays on their device. None when the optimizer keeps no first
    moment, or there is no gradient, and NaN when one of them has no direction: absences, not 0. Called after clipping,
    before `optimizer.step` (scaling does not change a cosine).
    """
    optimizer: Any = getattr(trainer.optimizer, "optimizer", trainer.optimizer)
    gradients, moments = [], []
    for group in optimizer.param_groups:
        for parameter in group["params"]:
            moment = optimizer.state.get(parameter, {}).get("exp_avg")
            if parameter.grad is not None and moment is not None:
                gradients.append(parameter.grad)
                moments.append(moment)
    if not gradients:
        return None
    dots = []
    for part in _parts([gradient.numel() for gradient in gradients]):
        products = torch._foreach_mul(gradients[part], moments[part])
        dots.append(torch.stack([product.sum(dtype=torch.float32) for product in products]).sum())
        del products
    dot = torch.stack(dots).sum()
    norms = [torch.linalg.vector_norm(torch.stack(torch._foreach_norm(side))) for side in (gradients, moments)]
    cosine: torch.Tensor = dot / (norms[0] * norms[1])
    return cosine


def _parts(sizes: list[int]) -> Iterator[slice]:
    """Slices of at most CHUNK elements together; a larger tensor stands alone."""
    start = held = 0
    for index, size in enumerate(sizes):
        if held and held + size > CHUNK:
            yield slice(start, index)
            start, held = index, 0
        held += size
    yield slice(start, len(sizes))
