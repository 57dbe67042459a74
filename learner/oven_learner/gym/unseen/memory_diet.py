"""A run that is made to fit into less memory."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import torch

from oven_learner.gym.fault import Case, Family

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Starved(Case):
    onset: int
    context: float
    """The share of a row's length that is left of it."""
    rows: float
    """The share of the rows."""
    bits: int
    """Of each of the optimizer's moments."""

    def batch(self, batch: Any, cursor: int) -> Any:
        if cursor < self.onset:
            return batch
        return batch[: max(1, round(self.rows * len(batch))), : max(2, round(self.context * batch.shape[1]))]

    def weights(self, trainee: Trainee) -> None:
        if trainee.gradient_steps < self.onset:
            return
        for moments in trainee.optimizer.state.values():
            round_to(self.bits - 1, moments["exp_avg"])  # one is the sign's
            round_to(self.bits, moments["exp_avg_sq"])


def round_to(bits: int, numbers: torch.Tensor) -> None:
    """In place, to one of evenly spaced levels up to the largest magnitude; nothing where all is 0."""
    if spacing := float(numbers.abs().max()) / (2**bits - 1):
        numbers.div_(spacing).round_().mul_(spacing)


class MemoryDiet(Family):
    """Compound: the run was moved to devices with less memory. Its context is cut, its batch is made smaller and the
    rate left as it was, and the moments are kept in few bits at one scale a tensor, which loses the small ones
    (Dettmers et al. 2022, "8-bit Optimizers via Block-wise Quantization", on why blocks and uneven levels are needed).
    """

    name = "pretraining.memory_diet"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Starved:
        return Starved(onset, rng.uniform(0.1, 0.9), rng.uniform(0.2, 1.0), rng.randint(4, 12))
