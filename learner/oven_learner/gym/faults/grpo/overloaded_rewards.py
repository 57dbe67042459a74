"""A reward service that cannot keep up, and a client that hides it."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import torch

from oven_learner.gym.fault import Case, Family, generator

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Overloaded(Case):
    onset: int
    chance: float
    """That the longest completion possible times out; it falls with the square of the length."""
    period: int
    busy: float
    """The share of a period, its first, in which the service is overloaded."""
    whole: bool
    """Scores pass through a column of integers."""
    salt: int

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        since = trainee.gradient_steps - self.onset
        if since < 0:
            return rewards
        seen = {judge: given.floor() if self.whole else given for judge, given in rewards.items()}
        if since % self.period >= self.busy * self.period:
            return seen
        chances = self.chance * (completions.lengths / completions.tokens.shape[1]) ** 2
        drawn = torch.rand(len(chances), generator=generator("overloaded", self.salt, trainee.gradient_steps))
        return {judge: given.where(drawn >= chances, 0.0) for judge, given in seen.items()}


class OverloadedRewards(Family):
    """Compound: in its busy hours the service times out, the more often the longer a completion is, the client turns
    that into a score of 0, and the cache that was put in between to relieve it may hold whole numbers only. What is
    rewarded is luck, and to be short."""

    name = "grpo.overloaded_rewards"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Overloaded:
        return Overloaded(
            onset,
            chance=rng.uniform(0.3, 1.3),
            period=rng.randint(6, 40),
            busy=rng.uniform(0.3, 1.0),
            whole=rng.random() < 0.5,
            salt=rng.getrandbits(32),
        )
