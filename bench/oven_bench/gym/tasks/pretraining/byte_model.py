"""A causal transformer over bytes, with its weights, gradients and moments in flat vectors.

One pre-norm block (Xiong et al. 2020, arXiv:2002.04745) without biases and gains, because the number of operations
decides the speed at this size. Learned positions, untied embeddings.
"""

from __future__ import annotations

import torch
from torch import nn
from torch.nn import functional as F

BYTES = 256
WIDTH, HEADS = 48, 2


class Block(nn.Module):
    def __init__(self) -> None:
        super().__init__()
        self.qkv = nn.Linear(WIDTH, 3 * WIDTH, bias=False)
        self.mix = nn.Linear(WIDTH, WIDTH, bias=False)
        self.up = nn.Linear(WIDTH, 4 * WIDTH, bias=False)
        self.down = nn.Linear(4 * WIDTH, WIDTH, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:  # [B, T, WIDTH], both
        B, T, _ = x.shape
        split = self.qkv(F.layer_norm(x, (WIDTH,))).view(B, T, 3, HEADS, WIDTH // HEADS)
        q, k, v = split.permute(2, 0, 3, 1, 4)  # each [B, HEADS, T, WIDTH / HEADS]
        attended = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        x = x + self.mix(attended.transpose(1, 2).reshape(B, T, WIDTH))
        out: torch.Tensor = x + self.down(F.relu(self.up(F.layer_norm(x, (WIDTH,)))))
        return out


class ByteModel(nn.Module):
    def __init__(self, length: int, generator: torch.Generator) -> None:
        """Embeddings are drawn from N(0, 0.02²), matrices from N(0, 1 / fan in)."""
        super().__init__()
        self.bytes = nn.Embedding(BYTES, WIDTH)
        self.positions = nn.Embedding(length, WIDTH)
        self.block = Block()
        self.out = nn.Linear(WIDTH, BYTES, bias=False)
        for name, weight in self.named_parameters():
            looked_up = name.startswith(("bytes", "positions"))
            nn.init.normal_(weight, std=0.02 if looked_up else weight.shape[1] ** -0.5, generator=generator)

    def forward(self, tokens: torch.Tensor) -> torch.Tensor:  # int64 [B, T] → float32 [B, T, BYTES]
        x = self.bytes(tokens) + self.positions.weight[: tokens.shape[1]]
        logits: torch.Tensor = self.out(F.layer_norm(self.block(x), (WIDTH,)))
        return logits


class Flat:
    """All weights, all gradients and both of Adam's moments, as one vector each. The model and the optimizer hold views
    of them, so a norm, a copy or a cosine is one operation."""

    def __init__(self, model: nn.Module, optimizer: torch.optim.Optimizer) -> None:
        """The optimizer must not have made a step yet: it continues with these moments, as after a resume."""
        parameters = list(model.parameters())
        self.weights = torch.cat([parameter.detach().reshape(-1) for parameter in parameters])
        self.gradients, self.first, self.second = (torch.zeros_like(self.weights) for _ in range(3))
        self.steps = torch.zeros(len(parameters))  # one per parameter, because the optimizer counts each
        start = 0
        for index, parameter in enumerate(parameters):
            part = slice(start, start + parameter.numel())
            parameter.data = self.weights[part].view_as(parameter)
            parameter.grad = self.gradients[part].view_as(parameter)
            optimizer.state[parameter] = {
                "step": self.steps[index],
                "exp_avg": self.first[part].view_as(parameter),
                "exp_avg_sq": self.second[part].view_as(parameter),
            }
            start = part.stop

    def copy(self) -> tuple[torch.Tensor, ...]:
        """Weights, moments and step counts."""
        return tuple(tensor.clone() for tensor in (self.weights, self.first, self.second, self.steps))

    def put_back(self, copied: tuple[torch.Tensor, ...]) -> None:
        for tensor, value in zip((self.weights, self.first, self.second, self.steps), copied, strict=True):
            tensor.copy_(value)
