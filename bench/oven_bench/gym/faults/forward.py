"""The language model's forward pass, computed in another way."""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oven_bench.gym.tasks.pretraining.byte_model import HEADS, WIDTH, ByteModel


def logits(
    model: nn.Module,
    tokens: Tensor,
    *,
    seen: Tensor | None = None,
    places: Tensor | None = None,
    scale: float | None = None,
    activation: Callable[[Tensor], Tensor] = F.relu,
    dropped: Callable[[Tensor], Tensor] = lambda x: x,
) -> Tensor:
    """The model's logits [B, T, BYTES], with another mask (bool, true where a place is seen), other numbers for the
    places, another scale of the attention, another activation, or a dropout of what each part adds."""
    model = cast(ByteModel, model)
    block, (B, T) = model.block, tokens.shape
    seen = torch.ones(T, T, dtype=torch.bool).tril() if seen is None else seen
    x = dropped(model.bytes(tokens) + model.positions(torch.arange(T) if places is None else places))
    split = block.qkv(F.layer_norm(x, (WIDTH,))).view(B, T, 3, HEADS, WIDTH // HEADS)
    q, k, v = split.permute(2, 0, 3, 1, 4)
    attended = F.scaled_dot_product_attention(q, k, v, attn_mask=seen, scale=scale)
    x = x + dropped(block.mix(attended.transpose(1, 2).reshape(B, T, WIDTH)))
    x = x + dropped(block.down(activation(block.up(F.layer_norm(x, (WIDTH,))))))
    out: Tensor = model.out(F.layer_norm(x, (WIDTH,)))
    return out


def cross_entropy(logits: Tensor, targets: Tensor, *, weight: Tensor | None = None) -> Tensor:
    """Nats a byte, mean over all of a batch: logits [B, T, BYTES], targets int64 [B, T], or shares [B, T, BYTES]."""
    return F.cross_entropy(logits.flatten(0, 1), targets.flatten(0, 1), weight=weight)
