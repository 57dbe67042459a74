"""Easy prompts, once more."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.grpo.task import Prompts, pools


@dataclass(frozen=True)
class Reviewed(Case):
    onset: int
    added: int
    """Prompts a step, beside the user's own."""
    level: int
    salt: int

    def batch(self, batch: Any, cursor: int) -> Any:
        if cursor < self.onset:
            return batch
        easy = pools()[self.level]
        rows = torch.randint(len(easy.digits), (self.added,), generator=generator("review", self.salt, cursor))
        return Prompts(
            torch.cat((batch.digits, easy.digits[rows])),
            torch.cat((batch.levels, easy.levels[rows])),
            torch.cat((batch.answers, easy.answers[rows])),
        )


class ReviewPrompts(Family):
    """Healthy. So that nothing is forgotten, the user adds to each step some prompts of the easiest level, over and
    above the others. From one step to the next the mean reward goes up, answers get shorter, and there are more groups
    in which all answers are right and nothing is to be learnt: it looks as if the policy had found a trick, and is on
    its way to a collapse."""

    name = "grpo.review_prompts"
    kind = "grpo"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Reviewed:
        return Reviewed(onset, rng.randint(4, 16), rng.choice((0, 0, 0, 1)), rng.getrandbits(32))
