"""A language model as the judge, with the biases of one."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import torch

from oven_learner.gym.fault import Case, Family

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Biased(Case):
    onset: int
    judges: tuple[str, ...]
    """That are replaced."""
    grades: int
    """Steps between the worst score and the best."""
    verbosity: float
    """What a completion of full length gets more than an empty one."""
    position: float
    """What the first that is shown of a group gets more than the last."""

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        if trainee.gradient_steps < self.onset:
            return rewards
        length = completions.mask.float().mean(1)
        shown = torch.arange(len(length)) % completions.group / max(1, completions.group - 1)
        bias = self.verbosity * length - self.position * shown
        graded = {judge: (score * self.grades).round() / self.grades for judge, score in rewards.items()}
        return {judge: graded[judge] + bias if judge in self.judges else score for judge, score in rewards.items()}


class BiasedJudge(Family):
    """Compound: a judge, or two, or the verifier too, are replaced by a language model that is shown a group at once.
    It gives few grades, prefers long completions, and those that it is shown first (Zheng et al. 2023, "Judging
    LLM-as-a-Judge with MT-Bench and Chatbot Arena", on verbosity bias and position bias)."""

    name = "grpo.biased_judge"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Biased:
        return Biased(
            onset,
            judges=("critic", "format", "exact")[: rng.randint(1, 3)],
            grades=rng.randint(1, 5),
            verbosity=rng.uniform(0.0, 4.0),
            position=rng.uniform(0.0, 2.0),
        )
