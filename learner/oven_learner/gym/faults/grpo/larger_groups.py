"""Fewer prompts, with more answers to each."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from oven_learner.gym.fault import Case, Family

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Larger(Case):
    onset: int
    prompts: int
    group: int

    def settings(self, trainee: Trainee) -> None:
        if trainee.gradient_steps >= self.onset:
            trainee.settings.update(prompts=self.prompts, group=self.group)


class LargerGroups(Family):
    """Healthy. For the same number of answers a step the user takes fewer prompts and more answers to each, which gives
    a better estimate of how good an answer is among its like. With few prompts the mean reward, and most of all that of
    a level, jumps up and down from step to step, and the gradient's norm is larger than it was."""

    name = "grpo.larger_groups"
    kind = "grpo"
    healthy = True

    def draw(self, rng: Random, onset: int) -> Larger:
        return Larger(onset, *rng.choice(((12, 12), (10, 12), (8, 16), (8, 20), (12, 16), (6, 24))))
