"""Completions from a coarser copy of the policy than the one that learns."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import torch

from oven_learner.gym.fault import Case, Family, generator

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee

SYNC = 10
"""Steps after which the errors of rounding are drawn anew: weights move slowly, and their errors with them."""
RANGE = 4.0
"""What the levels span on either side of 0, in 1 / √(columns), about the root mean square of a layer's weights."""


@dataclass(frozen=True)
class Quantized(Case):
    """Rounding as noise, uniform over one level: what was added before sampling can then be taken off again before the
    gradient, which rounding itself would not allow. Vectors are left in full, as engines do."""

    onset: int
    bits: float
    salt: int

    def weights(self, trainee: Trainee) -> None:
        if trainee.gradient_steps >= self.onset:
            self._add(trainee, 1.0)

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        if trainee.gradient_steps >= self.onset:
            self._add(trainee, -1.0)
        return rewards

    @torch.no_grad()
    def _add(self, trainee: Trainee, sign: float) -> None:
        source = generator("quantized", self.salt, trainee.gradient_steps // SYNC)
        for parameter in trainee.model.parameters():
            if parameter.dim() > 1:
                level = 2 * RANGE / parameter.shape[-1] ** 0.5 / 2**self.bits
                parameter.add_(torch.rand(parameter.shape, generator=source) - 0.5, alpha=sign * level)


class QuantizedSampler(Family):
    """The rollout engine loads the policy in few bits, the trainer steps in full precision: what is learnt from was
    drawn from a distribution that the loss takes for its own. That engines and trainers disagree, and that it unsettles
    training, is a known trouble of GRPO with a separate engine (Yao et al. 2025, "Your Efficient RL Framework Secretly
    Brings You Off-Policy RL Training")."""

    name = "grpo.quantized_sampler"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Quantized:
        return Quantized(onset, rng.uniform(1.5, 5.0), rng.getrandbits(32))
