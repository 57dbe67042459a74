"""Groups without a lesson that are left out."""

from __future__ import annotations

import math
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

from oven_learner.gym.fault import Case, Family

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Filtered(Case):
    onset: int
    most: float
    """The share of right answers from which on a group is left out."""
    hopeless: bool
    """Whether a group without a right answer is left out too."""

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        if trainee.gradient_steps < self.onset:
            return rewards
        right = rewards["exact"].view(-1, completions.group).mean(1)
        out = right >= self.most
        if self.hopeless:
            out = out | (right == 0)
        rows = out.repeat_interleave(completions.group)
        return {judge: score.masked_fill(rows, math.nan) for judge, score in rewards.items()}


class DynamicSampling(Family):
    """Healthy. The user turns on dynamic sampling: groups in which all are right have no advantages and are left out
    (Yu et al. 2025, "DAPO: An Open-Source LLM Reinforcement Learning System at Scale", section 3.2). What is left are
    the prompts that the policy is in two minds about: rewards fall and stay low however well it learns, and on the
    gauges the judges abstain ever more often."""

    name = "grpo.dynamic_sampling"
    kind = "grpo"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Filtered:
        return Filtered(onset, rng.uniform(0.8, 1.0), rng.random() < 0.3)
