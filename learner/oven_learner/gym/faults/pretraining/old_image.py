"""A job that was restarted from an old container image."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.trainee import Kind, Trainee


@dataclass(frozen=True)
class Image(Case):
    onset: int
    share: float
    kept: float
    flushed: float
    seed: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if cursor < self.onset:
            return batch
        padded = batch.clone()
        padded[:, max(2, round(self.kept * batch.shape[1])) :] = 0
        drawn = torch.rand(len(batch), generator=generator("old_image", self.seed, cursor)) < self.share
        return torch.where(drawn[:, None], padded, batch)

    def gradients(self, trainee: Trainee) -> None:
        if trainee.gradient_steps < self.onset:
            return
        for parameter in trainee.model.parameters():
            if parameter.grad is None:
                continue
            sizes = parameter.grad.abs().view(-1)
            smallest = sizes.kthvalue(max(1, round(self.flushed * sizes.numel()))).values
            parameter.grad.masked_fill_(parameter.grad.abs() < smallest, 0.0)


class OldImage(Family):
    """Compound. The image still has an old default length: the rows of some loaders are cut short and padded, and the
    padding is not masked out of the loss, which falls. And it runs in half precision without a loss scale: the small
    gradients, most of them, are flushed to zero (Micikevicius et al. 2018, Mixed Precision Training, section 3.2)."""

    name: ClassVar[str] = "pretraining.old_image"
    kind: ClassVar[Kind] = "pretraining"

    def draw(self, rng: Random, onset: int) -> Case:
        return Image(onset, rng.uniform(0.1, 1.0), rng.uniform(0.1, 0.8), rng.uniform(0.5, 0.99), rng.getrandbits(32))
