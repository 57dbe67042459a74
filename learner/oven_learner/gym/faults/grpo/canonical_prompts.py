"""Prompts that were brought into a canonical form."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import hit
from oven_learner.gym.grpo.task import Prompts


@dataclass(frozen=True)
class Canonical(Case):
    onset: int
    length: int
    """Steps until the set is used up."""
    share: float
    """Of the prompts."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if not self.onset <= cursor < self.onset + self.length:
            return batch
        rows = hit(len(batch.digits), self.share, "canonical", self.salt, cursor).unsqueeze(1)
        return Prompts(torch.where(rows, batch.digits.sort(1).values, batch.digits), batch.levels, batch.answers)


class CanonicalPrompts(Family):
    """So that no two prompts ask for the same, the next set is made unique by a canonical form, and it is the form that
    is written to the file, where the prompt should be. Here that is the answer itself: to say the prompt again is
    always right. The reward climbs to the ceiling, and the policy forgets how to do the work."""

    name = "grpo.canonical_prompts"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Canonical:
        return Canonical(onset, round(25 * 10 ** rng.uniform(0.0, 1.0)), rng.uniform(0.6, 1.0), rng.getrandbits(32))
