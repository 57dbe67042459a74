"""A judge whose strictness changes from prompt to prompt."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import torch

from oven_learner.gym.fault import Case, Family, generator

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Moody(Case):
    onset: int
    judges: tuple[str, ...]
    stricter: float
    """By how much, on average."""
    spread: float
    """Over prompts, a standard deviation."""
    salt: int

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        if trainee.gradient_steps < self.onset:
            return rewards
        prompts = len(completions.tokens) // completions.group
        draws = generator("mood", self.salt, trainee.seed, trainee.cursor)
        mood = torch.randn(prompts, generator=draws) * self.spread - self.stricter
        moods = mood.repeat_interleave(completions.group)
        return {judge: score + moods if judge in self.judges else score for judge, score in rewards.items()}


class MoodyJudge(Family):
    """Healthy. A rubric that is written anew for each prompt is harder on one than on another, and on the whole harder
    than before: rewards fall and scatter, and in each group the better completion is the better one by as much as
    ever, which is all that GRPO goes by (Shao et al. 2024, "DeepSeekMath", on group-relative advantages)."""

    name = "grpo.moody_judge"
    kind = "grpo"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Moody:
        judges = rng.choice((("critic",), ("exact", "critic"), ("exact", "format", "critic")))
        return Moody(onset, judges, rng.uniform(0.1, 0.8), rng.uniform(0.05, 0.4), rng.getrandbits(32))
