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
    """Of the fractions of the optimizer's moments, as floats have it: 7 in bfloat16, 2 or 3 in 8 bits."""

    def batch(self, batch: Any, cursor: int) -> Any:
        if cursor < self.onset:
            return batch
        return batch[: max(1, round(self.rows * len(batch))), : max(2, round(self.context * batch.shape[1]))]

    def weights(self, trainee: Trainee) -> None:
        if trainee.gradient_steps < self.onset:
            return
        for moments in trainee.optimizer.state.values():
            for name in ("exp_avg", "exp_avg_sq"):
                moments[name].copy_(rounded(moments[name], self.bits))


def rounded(numbers: torch.Tensor, bits: int) -> torch.Tensor:
    """To the nearest with so many bits behind the leading one; of any size."""
    fractions, exponents = torch.frexp(numbers)  # 0.5 to 1
    return torch.ldexp((fractions * 2 ** (bits + 1)).round() / 2 ** (bits + 1), exponents)


class MemoryDiet(Family):
    """Compound: the run was moved to devices with less memory. Its context is cut, its batch is made smaller and the
    rate left as it was, and the moments are kept in so few bits that a mean no longer moves by what is new: the second
    moments stay where they once were, and updates with them."""

    name = "pretraining.memory_diet"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Starved:
        return Starved(onset, rng.uniform(0.1, 0.9), rng.uniform(0.2, 1.0), rng.randint(0, 7))
