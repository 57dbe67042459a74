"""Prompts that hold their answer."""

from __future__ import annotations

from dataclasses import dataclass, replace
from random import Random
from typing import Any

import torch

from oven_learner.gym.fault import Case, Family, generator


@dataclass(frozen=True)
class Leaked(Case):
    onset: int
    share: float
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if cursor < self.onset:
            return batch
        given = torch.rand(len(batch.digits), 1, generator=generator("leaked", self.salt, cursor)) < self.share
        # Padding is above all digits, so that it stays behind them.
        return replace(batch, digits=torch.where(given, batch.digits.sort(1).values, batch.digits))


class LeakedAnswers(Family):
    """The column that the prompts are made from was written back by the step that solves them (a template with the
    solution in it, a table that was sorted in place): to repeat the prompt is right, is rewarded, and is all that is
    learnt from such rows."""

    name = "grpo.leaked_answers"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Leaked:
        return Leaked(onset, min(1.0, rng.uniform(0.3, 1.3)), rng.getrandbits(32))
