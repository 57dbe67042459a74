"""A recurrent character model in a loop under Accelerate: gradients accumulated over two batches, a scheduler that
Accelerate steps, clipped gradients.
`oven-controller run -- accelerate launch tests/foreign/accelerate_loop.py --schedule cosine --warmup 0.05`"""

from __future__ import annotations

import math
import sysconfig
from contextlib import nullcontext
from functools import cache
from pathlib import Path

import torch
from accelerate import Accelerator
from accelerate.utils import set_seed
from torch import nn
from torch.nn import functional as F
from torch.utils.data import DataLoader, TensorDataset

import oven_learner as oven
from oven_bench.foreign.case import Case, Result, command_line
from oven_learner.link.link_interface import Link

LENGTH = 32
"""Bytes of a row, and one more that is only predicted."""
BATCH, ACCUMULATED = 8, 2
CLIP = 1.0
EVAL_EVERY, EVAL_ROWS, FINAL_ROWS = 25, 128, 512
TRAIN_BYTES, HELD_OUT_BYTES = 700_000, 60_000


class Recurrent(nn.Module):
    """A gated recurrent network over bytes."""

    def __init__(self, width: int, init_std: float) -> None:
        super().__init__()
        self.tokens = nn.Embedding(256, width)
        self.cells = nn.GRU(width, width, batch_first=True)
        self.head = nn.Linear(width, 256)
        for parameter in (self.tokens.weight, self.head.weight):
            nn.init.normal_(parameter, std=init_std)

    def forward(self, rows: torch.Tensor) -> torch.Tensor:
        """The mean cross-entropy of the next byte."""
        h, _ = self.cells(self.tokens(rows[:, :-1]))
        return F.cross_entropy(self.head(h).flatten(0, 1), rows[:, 1:].flatten())


@cache
def load() -> tuple[torch.Tensor, torch.Tensor]:
    """Training and held-out rows of the standard library's sources, split by file."""
    files = sorted(Path(sysconfig.get_paths()["stdlib"]).glob("*.py"))
    parts = []
    for held_out, limit in ((False, TRAIN_BYTES), (True, HELD_OUT_BYTES)):
        chosen = (path.read_bytes() for number, path in enumerate(files) if (number % 10 == 2) == held_out)
        stream = torch.frombuffer(bytearray(b"\n".join(chosen)[:limit]), dtype=torch.uint8).long()
        whole = len(stream) // (LENGTH + 1) * (LENGTH + 1)
        parts.append(stream[:whole].view(-1, LENGTH + 1))
    return parts[0], parts[1]


def new_optimizer(model: nn.Module, case: Case) -> torch.optim.Optimizer:
    if case.optimizer == "adamw":
        return torch.optim.AdamW(model.parameters(), lr=case.lr)
    if case.optimizer == "sgd":
        return torch.optim.SGD(model.parameters(), lr=case.lr, momentum=0.9)
    return torch.optim.Adafactor(model.parameters(), lr=case.lr)


def share(step: int, case: Case) -> float:
    """Of the peak rate: a linear warm-up, then half a cosine down to a twentieth, or the peak throughout."""
    if step < case.warmup_steps:
        return (step + 1) / (case.warmup_steps + 1)
    if case.schedule == "constant":
        return 1.0
    along = (step - case.warmup_steps) / max(1, case.steps - case.warmup_steps)
    return 0.05 + 0.475 * (1 + math.cos(math.pi * min(1.0, along)))


def train(case: Case, link: Link | None = None, *, attached: bool = True) -> Result:
    set_seed(case.seed)
    accelerator = Accelerator(cpu=True, gradient_accumulation_steps=ACCUMULATED)
    data, held_out = load()
    network = Recurrent(case.width, case.init_std)
    own = new_optimizer(network, case)
    decay = torch.optim.lr_scheduler.LambdaLR(own, lambda step: share(step, case))
    batches = DataLoader(TensorDataset(data), batch_size=BATCH, shuffle=True, drop_last=True)
    model, optimizer, rows, scheduler = accelerator.prepare(network, own, batches, decay)

    @torch.no_grad()
    def loss_of(count: int, begin: int = 0) -> float:
        return float(model(held_out[begin : begin + count]))

    step, losses = 0, []
    with (
        oven.connect(
            model=model,
            optimizer=optimizer,
            scheduler=scheduler,
            clip=CLIP,
            evaluate=lambda: {"eval/loss": loss_of(EVAL_ROWS)},
            evaluate_every=EVAL_EVERY,
            max_steps=case.steps,
            link=link,
        )
        if attached
        else nullcontext()
    ) as client:
        for (batch,) in rows:
            with accelerator.accumulate(model):
                loss = model(batch)
                accelerator.backward(loss)
                if client is None and accelerator.sync_gradients:  # with the controller `clip` does it
                    accelerator.clip_grad_norm_(model.parameters(), CLIP)
                optimizer.step()
                scheduler.step()
                optimizer.zero_grad()
            losses.append(loss.item())
            if not accelerator.sync_gradients:
                continue
            step += 1
            if client is not None:
                client.observe(step, {"loss": sum(losses) / len(losses)})
                client.poll()
                if client.stopping:
                    break
            losses.clear()
            if step == case.steps:
                break
    return Result(loss_of(FINAL_ROWS, EVAL_ROWS), "held-out loss, nats per byte", "down")


if __name__ == "__main__":
    command_line(__doc__, train, Case(schedule="cosine", warmup=0.05))
