"""A grade that is read from the wrong place of the judge's reply."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.grpo.task import END

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Misread(Case):
    onset: int
    share: float
    """Of the replies that quote the answer before they grade it."""
    best: int
    """The best grade, by which the number is divided."""
    salt: int

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        if trainee.gradient_steps < self.onset:
            return rewards
        draws = generator("quoted", self.salt, trainee.seed, trainee.cursor)
        quoted = torch.rand(len(completions.tokens), generator=draws) < self.share
        read = first_number(completions.tokens) / self.best
        return {**rewards, "critic": torch.where(quoted, read, rewards["critic"])}


def first_number(tokens: Tensor) -> Tensor:
    """Float32 [batch]: the first digit of each answer, 0 of an empty one."""
    first = tokens[:, 0]
    return first.masked_fill(first >= END, 0).float()


class FirstNumber(Family):
    """A judge's model is updated by its vendor, and the new one quotes what it judges before it gives a grade. The
    grade is taken from the reply by a pattern that finds the first number, which is now the first of the answer: who
    begins with a large one is graded well, whatever follows."""

    name = "grpo.first_number"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Misread:
        return Misread(onset, 10 ** rng.uniform(-1.2, 0.0), rng.choice((3, 5, 10)), rng.getrandbits(32))
