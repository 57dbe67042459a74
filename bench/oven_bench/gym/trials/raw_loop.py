"""A small GPT in a loop of its user's own, in the manner of nanoGPT, that can be put back and played again for a trial.

Random rows of the standard library's sources, gradients accumulated over several micro-batches, AdamW, a clip, and a
rate that a function of the step sets: a linear warm-up, then half a cosine down to a tenth. For trials it reads through
`client.batches`, evaluates example by example, multiplies its rate by `client.lr_scale`, and begins each step at
`client.step + 1`.
"""

from __future__ import annotations

import math
from collections.abc import Generator, Iterator
from dataclasses import dataclass

import torch
from torch import Tensor
from torch.nn import functional as F

import oven_learner as oven
from oven_bench.gym.seeded_draws import generator
from oven_bench.gym.tasks.pretraining.byte_model import BYTES
from oven_bench.gym.tasks.pretraining.corpus import SHARES, corpus
from oven_bench.gym.tasks.wide.wide_model import WideModel
from oven_learner.link.link_interface import Link

PEAK = 1e-3
"""The good rate."""
LOWEST = 0.1
"""Of the peak, at the end."""
WEIGHT_DECAY, CLIP = 0.1, 1.0
WORST = math.log(BYTES)
"""Nats per byte of a model that knows nothing; a broken run has it too."""
AT_ONCE = 64
"""Rows of a forward pass without gradients."""


@dataclass(frozen=True, slots=True)
class Size:
    """How long and how wide a run is."""

    steps: int = 300
    warmup: int = 30
    micro_batches: int = 2
    rows: int = 4
    """Of a micro-batch."""
    evaluate_every: int = 20


class RawLoop:
    """One run."""

    def __init__(self, seed: int, factor: float, size: Size) -> None:
        """`factor`: of the good rate, which the user has set."""
        self.computed = 0
        """Gradient steps so far, those of branches and those that a rollback took back included."""
        self._seed, self._peak, self._size = seed, factor * PEAK, size
        self._model = WideModel(generator("raw loop weights", seed))
        matrices = [parameter for parameter in self._model.parameters() if parameter.dim() >= 2]
        vectors = [parameter for parameter in self._model.parameters() if parameter.dim() < 2]
        groups = [{"params": matrices, "weight_decay": WEIGHT_DECAY}, {"params": vectors, "weight_decay": 0.0}]
        self._optimizer = torch.optim.AdamW(groups, lr=self._peak, betas=(0.9, 0.95))

    def rate(self, step: int) -> float:
        """Of the step with this number, from 1 on."""
        size = self._size
        if step <= size.warmup:
            return self._peak * step / size.warmup
        along = (step - size.warmup) / max(1, size.steps - size.warmup)
        return self._peak * (LOWEST + (1 - LOWEST) * 0.5 * (1 + math.cos(math.pi * min(1.0, along))))

    def train(self, link: Link, *, tries: bool = True) -> Generator[bool]:
        """Whether a trial was under way, after each gradient step, to the end of the run. `tries`: whether the loop is
        written so that trials can be made; without it, it reads and evaluates as loops usually do."""
        size = self._size
        with oven.connect(
            link=link,
            model=self._model,
            optimizer=self._optimizer,
            clip=CLIP,
            evaluate=self._each if tries else self._mean,
            evaluate_every=size.evaluate_every,
            max_steps=size.steps,
        ) as client:
            batches = client.batches(self._rows()) if tries else self._rows()
            while client.step < size.steps and not client.stopping:
                rate = self.rate(client.step + 1) * client.lr_scale
                for group in self._optimizer.param_groups:
                    group["lr"] = rate
                total = 0.0
                for _ in range(size.micro_batches):
                    loss = self._losses(next(batches)).mean() / size.micro_batches
                    loss.backward()  # type: ignore[no-untyped-call]
                    total += loss.item()
                self._optimizer.step()
                self._optimizer.zero_grad(set_to_none=True)
                self.computed += 1
                client.observe(client.step + 1, {"loss": total})
                played = client.branch is not None and client.branch.recorded > 0
                client.poll()
                yield played or (client.branch is not None and client.branch.recorded > 0)

    @torch.no_grad()
    def quality(self) -> float:
        """Nats per byte on held-out rows that `eval/loss` is not measured on; at most WORST, which NaN is too."""
        loss = self._losses_of(corpus().judged).mean().item()
        return min(loss, WORST) if math.isfinite(loss) else WORST

    def _rows(self) -> Iterator[Tensor]:  # int64 [rows, LENGTH + 1], of the sub-corpora in their shares
        draws, shares = generator("raw loop rows", self._seed), torch.tensor([*SHARES.values()])
        train = [corpus().train[name] for name in SHARES]
        while True:
            kinds = torch.multinomial(shares, self._size.rows, replacement=True, generator=draws).tolist()
            places = torch.rand(self._size.rows, generator=draws).tolist()
            picked = [train[kind][int(at * len(train[kind]))] for kind, at in zip(kinds, places, strict=True)]
            yield torch.stack(picked).long()

    @torch.no_grad()
    def _each(self) -> dict[str, list[float]]:
        return {"eval/loss": self._losses_of(corpus().gauged).tolist()}

    @torch.no_grad()
    def _mean(self) -> dict[str, float]:
        return {"eval/loss": self._losses_of(corpus().gauged).mean().item()}

    def _losses_of(self, rows: Tensor) -> Tensor:
        return torch.cat([self._losses(part) for part in torch.split(rows, AT_ONCE)])

    def _losses(self, rows: Tensor) -> Tensor:
        """[B, LENGTH + 1] → [B], nats per byte of each row."""
        return F.cross_entropy(self._model(rows[:, :-1]).transpose(1, 2), rows[:, 1:], reduction="none").mean(1)
