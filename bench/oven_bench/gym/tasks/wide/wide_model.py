"""A causal transformer over bytes: one block, LayerNorm with gains, GELU, the output layer is the embedding (GPT-2)."""

from __future__ import annotations

import torch
from torch import Tensor, nn
from torch.nn import functional as F

from oven_bench.gym.tasks.pretraining.byte_model import BYTES
from oven_bench.gym.tasks.pretraining.corpus import LENGTH

WIDTH, HEADS = 96, 3


class Block(nn.Module):
    """Pre-LN: each branch reads a normalised copy of the stream, and adds to it."""

    def __init__(self) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(WIDTH), nn.LayerNorm(WIDTH)
        self.qkv, self.mix = nn.Linear(WIDTH, 3 * WIDTH), nn.Linear(WIDTH, WIDTH)
        self.up, self.down = nn.Linear(WIDTH, 4 * WIDTH), nn.Linear(4 * WIDTH, WIDTH)

    def forward(self, x: Tensor) -> Tensor:  # [B, T, WIDTH], both
        B, T, _ = x.shape
        q, k, v = (
            part.view(B, T, HEADS, WIDTH // HEADS).transpose(1, 2) for part in self.qkv(self.norm_1(x)).split(WIDTH, 2)
        )
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(attended.transpose(1, 2).reshape(B, T, WIDTH))
        out: Tensor = x + self.down(F.gelu(self.up(self.norm_2(x))))
        return out


class WideModel(nn.Module):
    """143,000 parameters."""

    def __init__(self, generator: torch.Generator) -> None:
        """Matrices N(0, 0.02²) as in GPT-2, from `generator`."""
        super().__init__()
        with torch.random.fork_rng(devices=[]):
            self.bytes, self.places = nn.Embedding(BYTES, WIDTH), nn.Embedding(LENGTH, WIDTH)
            self.block, self.norm = Block(), nn.LayerNorm(WIDTH)
        for parameter in self.parameters():
            if parameter.dim() > 1:
                nn.init.normal_(parameter, std=0.02, generator=generator)
        for layer in (self.block.qkv, self.block.mix, self.block.up, self.block.down):
            nn.init.zeros_(layer.bias)

    def forward(self, tokens: Tensor) -> Tensor:  # int64 [B, T] → float32 [B, T, BYTES]
        x = self.bytes(tokens) + self.places.weight[: tokens.shape[1]]
        logits: Tensor = self.norm(self.block(x)) @ self.bytes.weight.T
        return logits
