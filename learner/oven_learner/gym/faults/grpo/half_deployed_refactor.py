"""A change of code that turned a sign, and that only some of the nodes run."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.trainee import Kind, Trainee


@dataclass(frozen=True)
class Sign(Case):
    onset: int
    share: float
    penalty: bool
    seed: int

    def settings(self, trainee: Trainee) -> None:
        if self.penalty and trainee.gradient_steps >= self.onset:
            trainee.settings["beta"] *= 1.0 - 2.0 * self.share

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        step = trainee.gradient_steps
        if step < self.onset:
            return rewards
        groups = len(completions.tokens) // completions.group
        drawn = torch.rand(groups, generator=generator("half_deployed", self.seed, step)) < self.share
        sign = torch.where(drawn, -1.0, 1.0).repeat_interleave(completions.group)
        return {judge: sign * given for judge, given in rewards.items()}


class HalfDeployedRefactor(Family):
    """Compound. On the nodes that were restarted since a refactor the reward has the wrong sign, and so may the penalty
    on the divergence: their prompts teach what the others unlearn.

    Ziegler et al. 2019 (Fine-Tuning Language Models from Human Preferences, arXiv 1909.08593, section 4.4) report a
    refactor that flipped both signs over night.
    """

    name: ClassVar[str] = "grpo.half_deployed_refactor"
    kind: ClassVar[Kind] = "grpo"

    def draw(self, rng: Random, onset: int) -> Case:
        return Sign(onset, rng.uniform(0.2, 1.0), rng.random() < 0.5, rng.getrandbits(32))
