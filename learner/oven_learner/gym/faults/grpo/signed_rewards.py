"""Rewards on another scale."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from oven_learner.gym.fault import Case, Family

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Signed(Case):
    onset: int
    scale: float
    least: float
    """What the worst answer is given."""

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        if trainee.gradient_steps < self.onset:
            return rewards
        return {judge: self.least + self.scale * said for judge, said in rewards.items()}


class SignedRewards(Family):
    """Healthy. All judges go over to a common scale at once, on which a bad answer is below nothing, as the user's
    other projects have it. The mean reward drops through the floor in one step, by level and by judge, and its spread
    changes, too. Every reward is measured against its own group, in units of the group's spread: to the policy nothing
    has happened."""

    name = "grpo.signed_rewards"
    kind = "grpo"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Signed:
        scale = 10 ** rng.uniform(-0.7, 1.0)
        return Signed(onset, scale, -scale * rng.uniform(0.3, 1.5))
