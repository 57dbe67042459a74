"""Verdicts that arrive after their completion has left."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.trainee import Kind, Trainee


@dataclass(frozen=True)
class Lateness(Case):
    onset: int
    ramp: int
    late: float
    lag: int
    seed: int

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        since = trainee.gradient_steps - self.onset
        if since < 0:
            return rewards
        source = generator("late_rewards", self.seed, trainee.gradient_steps)
        share = self.late * min(1.0, (since + 1) / self.ramp)
        late = torch.rand(len(completions.tokens), generator=source) < share
        return {judge: torch.where(late, given.roll(self.lag), given) for judge, given in rewards.items()}


class LateRewards(Family):
    """No event, a slope: the queue between samplers and judges fills up, and more and more completions are credited
    with what all judges said of one before them. The judges agree as ever, each of them is right, and the mean reward
    is what the policy earns; only the credit is wrong."""

    name: ClassVar[str] = "grpo.late_rewards"
    kind: ClassVar[Kind] = "grpo"

    def draw(self, rng: Random, onset: int) -> Case:
        return Lateness(onset, rng.randint(5, 60), rng.uniform(0.4, 1.0), rng.randint(1, 8), rng.getrandbits(32))
