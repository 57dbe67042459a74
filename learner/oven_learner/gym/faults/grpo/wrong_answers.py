"""A part of the prompts comes with wrong answers: the judges that have them pay for sorting downwards."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.severity import uniform
from oven_learner.gym.grpo.task import LEVELS, PAD, Prompts
from oven_learner.gym.trainee import Kind


@dataclass(frozen=True)
class Downwards(Case):
    """Of the prompts of some levels this share, from a position of the data on: a run that goes back meets it again."""

    onset: int
    levels: frozenset[int]
    share: float
    seed: int

    def batch(self, batch: Prompts, cursor: int) -> Prompts:
        if cursor < self.onset:
            return batch
        hit = torch.rand(len(batch.levels), generator=generator("wrong answers", self.seed, cursor)) < self.share
        hit &= torch.tensor([level in self.levels for level in batch.levels.tolist()])
        return Prompts(batch.digits, batch.levels, torch.where(hit[:, None], downwards(batch), batch.answers))


def downwards(prompts: Prompts) -> torch.Tensor:
    """What is held to be right then: int64 [P, ANSWER]."""
    digits = prompts.digits.masked_fill(prompts.digits == PAD, -1).sort(1, descending=True).values
    answers = prompts.answers.clone()
    answers[:, : digits.shape[1]] = torch.where(digits >= 0, digits, answers[:, : digits.shape[1]])
    return answers


class WrongAnswers(Family):
    name: ClassVar[str] = "grpo.wrong_answers"
    kind: ClassVar[Kind] = "grpo"

    def draw(self, rng: Random, onset: int) -> Downwards:
        spared = rng.getrandbits(8) % len(LEVELS)
        levels = frozenset(range(len(LEVELS))) - {spared}
        return Downwards(onset, levels, uniform(rng, 0.4, 1), rng.getrandbits(32))
