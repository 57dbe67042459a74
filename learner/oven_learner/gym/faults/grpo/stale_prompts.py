"""Prompts that come out of a cache."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any, ClassVar

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.grpo.verifier_blind_spot import END, PAD
from oven_learner.gym.trainee import Kind


@dataclass(frozen=True)
class Cache(Case):
    onset: int
    size: int
    seed: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if cursor < self.onset:
            return batch
        rows, width = batch.digits.shape
        cached = torch.randint(END, (self.size, width), generator=generator("stale_prompts", self.seed))
        drawn = torch.randint(self.size, (rows,), generator=generator("stale_prompts", self.seed, cursor))
        # A prompt keeps the number of digits that was asked for, so that the mixture of levels is as it was.
        digits = torch.where(batch.digits == PAD, PAD, cached[drawn])
        answers = torch.where(batch.answers < END, 0, batch.answers)
        answers[:, :width] += torch.where(digits == PAD, 0, digits.sort(1).values)
        return replace(batch, digits=digits, answers=answers)


class StalePrompts(Family):
    """A cache in front of the prompt store stops being refreshed, and every batch is drawn from the few prompts that it
    held. Reward rises, for the policy learns their answers by heart; what it learns of the task it forgets."""

    name: ClassVar[str] = "grpo.stale_prompts"
    kind: ClassVar[Kind] = "grpo"

    def draw(self, rng: Random, onset: int) -> Case:
        return Cache(onset, round(32 ** rng.random()), rng.getrandbits(32))
