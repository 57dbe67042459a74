"""A new version of the rollout engine, with defaults of its own."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.grpo.quantized_sampler import Quantized
from oven_learner.gym.grpo.task import PAD

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Upgraded(Case):
    onset: int
    temperature: float
    """Times the user's own."""
    left: float
    """The share of prompts that are padded on the left: of the workers that are upgraded already."""
    rounding: Quantized
    salt: int

    def settings(self, trainee: Trainee) -> None:
        if trainee.gradient_steps >= self.onset and "temperature" in trainee.settings:
            trainee.settings["temperature"] *= self.temperature

    def weights(self, trainee: Trainee) -> None:
        self.rounding.weights(trainee)

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        return self.rounding.rewards(rewards, completions, trainee)

    def batch(self, batch: Any, cursor: int) -> Any:
        if cursor < self.onset:
            return batch
        moved = torch.rand(len(batch.digits), 1, generator=generator("upgraded", self.salt, cursor)) < self.left
        return replace(batch, digits=torch.where(moved, padded_left(batch.digits), batch.digits))


def padded_left(digits: Tensor) -> Tensor:
    """Int64 [prompts, digits], with the padding before the digits and these in the order they had."""
    return digits.gather(1, (digits != PAD).int().argsort(dim=1, stable=True))


class SamplerUpgrade(Family):
    """Compound: the engine takes the temperature from the model's own file of defaults, above the user's; pads prompts
    on the other side than the policy was trained with; and keeps its weights in fewer bits. Each is harmless enough to
    pass a test of a few prompts."""

    name = "grpo.sampler_upgrade"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Upgraded:
        return Upgraded(
            onset,
            temperature=rng.uniform(1.0, 2.0),
            left=rng.uniform(0.0, 0.8),
            rounding=Quantized(onset, rng.uniform(3.0, 7.0), rng.getrandbits(32)),
            salt=rng.getrandbits(32),
        )
