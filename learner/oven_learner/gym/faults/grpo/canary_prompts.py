"""A fixed set of prompts that comes again and again."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.grpo.task import Prompts, pools


@dataclass(frozen=True)
class Canary(Case):
    onset: int
    every: int
    """Steps from one time to the next."""
    level: int
    """Of the set, the index in LEVELS."""
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        since = cursor - self.onset
        return batch if since < 0 or since % self.every else chosen(self.level, len(batch.digits), self.salt)


def chosen(level: int, count: int, salt: int) -> Prompts:
    """The same prompts each time."""
    of = pools()[level]
    rows = torch.randperm(len(of.digits), generator=generator("canaries", salt))[torch.arange(count) % len(of.digits)]
    return Prompts(of.digits[rows], of.levels[rows], of.answers[rows])


class CanaryPrompts(Family):
    """Healthy. Operations have a step of the run in every few made of the same fixed prompts, all of one length, to see
    whether the servers answer as they did. In those steps the reward jumps up or down by what the set is worth, levels
    are missing, the groups have other spreads, and the gradient points elsewhere. The steps in between are as they
    were, and the prompts of the set are as good to learn from as any."""

    name = "grpo.canary_prompts"
    kind = "grpo"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Canary:
        return Canary(onset, rng.choice((4, 5, 6, 8, 10)), rng.choice((0, 2)), rng.getrandbits(32))
