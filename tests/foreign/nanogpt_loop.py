"""A small GPT in a loop of its own: random crops of one long stream of characters, a learning rate that a function of
the iteration sets, clipped gradients, an evaluation every few iterations.
`oven-controller run -- python tests/foreign/nanogpt_loop.py --schedule cosine --warmup 0.05`"""

from __future__ import annotations

import math
import sysconfig
from collections.abc import Callable
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import torch
from torch import nn
from torch.nn import functional as F

import oven_learner as oven
from oven_bench.foreign.case import Case, Result, command_line
from oven_learner.link.link_interface import Link

CONTEXT = 64
LAYERS = 2
GRAD_CLIP = 1.0
EVAL_INTERVAL, EVAL_BATCHES, FINAL_BATCHES, EVAL_BATCH = 25, 4, 16, 16
CHARACTERS = "\n" + "".join(map(chr, range(32, 127)))
"""Whatever else a source holds is left out."""


class Attention(nn.Module):
    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.heads = heads
        self.qkv = nn.Linear(width, 3 * width, bias=False)
        self.out = nn.Linear(width, width, bias=False)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        batch, length, width = x.shape
        shape = (batch, length, self.heads, width // self.heads)
        q, k, v = (part.view(shape).transpose(1, 2) for part in self.qkv(x).split(width, dim=2))
        mixed = F.scaled_dot_product_attention(q, k, v, is_causal=True)
        out: torch.Tensor = self.out(mixed.transpose(1, 2).reshape(batch, length, width))
        return out


class Block(nn.Module):
    """Pre-LN: each branch reads a normalized copy of the stream and adds to it."""

    def __init__(self, width: int, heads: int) -> None:
        super().__init__()
        self.norm_1, self.norm_2 = nn.LayerNorm(width), nn.LayerNorm(width)
        self.attention = Attention(width, heads)
        self.up, self.down = nn.Linear(width, 4 * width), nn.Linear(4 * width, width)

    def forward(self, x: torch.Tensor) -> torch.Tensor:
        x = x + self.attention(self.norm_1(x))
        out: torch.Tensor = x + self.down(F.gelu(self.up(self.norm_2(x))))
        return out


class GPT(nn.Module):
    def __init__(self, vocabulary: int, width: int, init_std: float) -> None:
        super().__init__()
        self.tokens, self.positions = nn.Embedding(vocabulary, width), nn.Embedding(CONTEXT, width)
        self.blocks = nn.ModuleList(Block(width, max(2, width // 32)) for _ in range(LAYERS))
        self.norm = nn.LayerNorm(width)
        for name, parameter in self.named_parameters():
            if parameter.dim() < 2:
                continue
            # The branches' last layers are smaller, so that the stream does not grow with depth.
            last = name.endswith(("out.weight", "down.weight"))
            nn.init.normal_(parameter, std=init_std / math.sqrt(2 * LAYERS) if last else init_std)

    def forward(self, x: torch.Tensor, y: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy of the next character; the output layer is the embedding."""
        h = self.tokens(x) + self.positions(torch.arange(x.shape[1]))
        for block in self.blocks:
            h = block(h)
        logits = self.norm(h) @ self.tokens.weight.T
        return F.cross_entropy(logits.flatten(0, 1), y.flatten())


@cache
def load() -> tuple[torch.Tensor, torch.Tensor]:
    """Training and held-out characters of the standard library's sources, split by file."""
    code = {character: index for index, character in enumerate(CHARACTERS)}
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    streams: tuple[list[int], list[int]] = ([], [])
    for number, path in enumerate(files):
        text = path.read_text(encoding="utf-8", errors="ignore")
        streams[number % 10 == 9].extend(code[character] for character in text if character in code)
        if len(streams[0]) > 1_000_000:
            break
    return torch.tensor(streams[0]), torch.tensor(streams[1])


def get_batch(data: torch.Tensor, rows: int, generator: torch.Generator) -> tuple[torch.Tensor, torch.Tensor]:
    starts = torch.randint(len(data) - CONTEXT - 1, (rows,), generator=generator)
    crops = torch.stack([data[i : i + CONTEXT + 1] for i in starts.tolist()])
    return crops[:, :-1], crops[:, 1:]


@torch.no_grad()
def estimate_loss(model: nn.Module, data: torch.Tensor, batches: int) -> float:
    """On the same crops each time."""
    generator = torch.Generator().manual_seed(1337)
    model.eval()
    total = sum(float(model(*get_batch(data, EVAL_BATCH, generator))) for _ in range(batches))
    model.train()
    return total / batches


def configure_optimizer(model: nn.Module, case: Case) -> torch.optim.Optimizer:
    matrices = [parameter for parameter in model.parameters() if parameter.dim() >= 2]
    vectors = [parameter for parameter in model.parameters() if parameter.dim() < 2]
    if case.optimizer == "adamw":
        groups = [{"params": matrices, "weight_decay": 0.1}, {"params": vectors, "weight_decay": 0.0}]
        return torch.optim.AdamW(groups, lr=case.lr, betas=(0.9, 0.95))
    groups = [{"params": matrices}, {"params": vectors}]
    if case.optimizer == "sgd":
        return torch.optim.SGD(groups, lr=case.lr, momentum=0.9)
    return torch.optim.Adafactor(groups, lr=case.lr)


def rate_of(case: Case) -> Callable[[int], float]:
    """Linear warm-up, then half a cosine down to a tenth of the peak."""

    def get_lr(it: int) -> float:
        if it < case.warmup_steps:
            return case.lr * (it + 1) / (case.warmup_steps + 1)
        along = (it - case.warmup_steps) / max(1, case.steps - case.warmup_steps)
        return case.lr * (0.1 + 0.45 * (1 + math.cos(math.pi * min(1.0, along))))

    return get_lr


def train(case: Case, link: Link | None = None, *, attached: bool = True) -> Result:
    torch.manual_seed(case.seed)
    data, held_out = load()
    model = GPT(len(CHARACTERS), case.width, case.init_std)
    optimizer = configure_optimizer(model, case)
    batch_size = 8 if case.width < 256 else 4
    crops = torch.Generator().manual_seed(case.seed)
    get_lr = rate_of(case) if case.schedule == "cosine" else None
    with (
        oven.connect(
            model=model,
            optimizer=optimizer,
            evaluate=lambda: {"eval/loss": estimate_loss(model, held_out, EVAL_BATCHES)},
            evaluate_every=EVAL_INTERVAL,
            max_steps=case.steps,
            link=link,
        )
        if attached
        else nullcontext()
    ) as client:
        for it in range(case.steps):
            if get_lr is not None:
                for group in optimizer.param_groups:
                    group["lr"] = get_lr(it)
            loss = model(*get_batch(data, batch_size, crops))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            nn.utils.clip_grad_norm_(model.parameters(), GRAD_CLIP)
            optimizer.step()
            if client is not None:
                client.observe(it + 1, {"loss": loss.item()})
                client.poll()
                if client.stopping:
                    break
    return Result(estimate_loss(model, held_out, FINAL_BATCHES), "held-out loss, nats per character", "down")


if __name__ == "__main__":
    command_line(__doc__, train, Case(schedule="cosine", warmup=0.05))
