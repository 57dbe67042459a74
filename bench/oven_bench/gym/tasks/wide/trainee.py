"""A raw loop: random rows of the standard library's sources, AdamW, and a rate from a function of the step."""

from __future__ import annotations

import math

import torch
from torch import Tensor
from torch.nn import functional as F

from oven_bench.gym.seeded_draws import generator
from oven_bench.gym.tasks.pretraining.byte_model import BYTES
from oven_bench.gym.tasks.pretraining.corpus import SHARES, corpus
from oven_bench.gym.tasks.wide.wide_model import WideModel
from oven_bench.gym.torch_trainee import BatchStep, TorchTrainee
from oven_core.protocol.messages import MetricSpec

BATCH = 8
PEAK, HALVED = 1.5e-3, 300
"""The rate of the first step, and the step by which it has fallen to half of that."""
WEIGHT_DECAY, CLIP = 0.1, 1.0
WORST = math.log(BYTES)
"""Nats a byte of a model that knows nothing; a broken run has it too."""
AT_ONCE = 64
"""Rows of a forward pass without gradients: small enough for the cache."""


def rate(step: int) -> float:
    """The inverse square root of the step, from the first one on."""
    return PEAK / math.sqrt(1 + 3 * step / HALVED)


class Wide(TorchTrainee[Tensor]):
    """A batch is int64 [B, LENGTH + 1]: what is read, and the byte behind it."""

    kind = "wide"

    def __init__(self, seed: int) -> None:
        model = WideModel(generator("wide weights", seed))
        optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK, betas=(0.9, 0.95), weight_decay=WEIGHT_DECAY)
        super().__init__(seed, model, optimizer, (MetricSpec(name="eval/loss", better="down", held_out=True),))
        self.announce_times("clip", "grad.clip", unit="norm")
        self.announce_weight_decay()

    def user_settings(self) -> dict[str, float]:
        return {"learning_rate": rate(self.updates), "weight_decay": WEIGHT_DECAY, "clip": CLIP, "batch": BATCH}

    def read(self, step: BatchStep[Tensor]) -> Tensor:
        """Rows of the sub-corpora in their shares, with replacement."""
        draws = generator("wide rows", self.seed, step.cursor)
        count = int(self.settings["batch"])
        kinds = torch.multinomial(torch.tensor([*SHARES.values()]), count, replacement=True, generator=draws)
        places = torch.rand(count, generator=draws).tolist()
        train = [corpus().train[name] for name in SHARES]
        rows = [train[kind][int(at * len(train[kind]))] for kind, at in zip(kinds.tolist(), places, strict=True)]
        return torch.stack(rows).long()

    def loss(self, step: BatchStep[Tensor]) -> tuple[Tensor, dict[str, float]]:
        return self._loss_of(step.batch), {}

    def evaluated(self) -> dict[str, float]:
        return {"eval/loss": self._measured(corpus().gauged)}

    def each_example(self) -> Tensor:
        rows = corpus().gauged.long()
        return F.cross_entropy(self.model(rows[:, :-1]).transpose(1, 2), rows[:, 1:], reduction="none").mean(1)

    @torch.no_grad()
    def quality(self) -> float:
        """Nats a byte on held-out rows that `eval/loss` is not measured on; at most WORST, which NaN is too."""
        loss = self._measured(corpus().judged)
        return min(loss, WORST) if math.isfinite(loss) else WORST

    def _loss_of(self, rows: Tensor) -> Tensor:
        return F.cross_entropy(self.model(rows[:, :-1]).flatten(0, 1), rows[:, 1:].flatten())

    def _measured(self, rows: Tensor) -> float:
        losses = [float(self._loss_of(part)) * len(part) for part in torch.split(rows, AT_ONCE)]
        return math.fsum(losses) / len(rows) if all(map(math.isfinite, losses)) else math.nan
