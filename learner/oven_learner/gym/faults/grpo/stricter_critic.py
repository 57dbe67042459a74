"""A critic that was told to be strict."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.trainee import Kind, Trainee


@dataclass(frozen=True)
class Strictness(Case):
    onset: int
    ramp: int
    less: float

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        since = trainee.gradient_steps - self.onset
        if since < 0:
            return rewards
        return rewards | {"critic": rewards["critic"] - self.less * min(1.0, (since + 1) / self.ramp)}


class StricterCritic(Family):
    """Healthy. The critic's next version marks everything down by the same amount, at once or over some steps. Reward
    falls, but an advantage is what a completion has over its group (Shao et al. 2024, DeepSeekMath, arXiv 2402.03300,
    section 4.1.2), and that is what it was."""

    name: ClassVar[str] = "grpo.stricter_critic"
    kind: ClassVar[Kind] = "grpo"
    healthy: ClassVar[bool] = True

    def draw(self, rng: Random, onset: int) -> Case:
        return Strictness(onset, rng.choice((1, 10, 40)), rng.uniform(0.2, 0.7))
