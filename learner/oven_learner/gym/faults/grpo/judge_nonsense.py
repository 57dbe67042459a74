"""A judge answers nonsense: a number that has nothing to do with the completion, and no abstention."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.severity import uniform
from oven_learner.gym.grpo.judges import Completions
from oven_learner.gym.grpo.task import END
from oven_learner.gym.trainee import Kind, Trainee

JUDGES = ("exact", "critic")


@dataclass(frozen=True)
class Nonsense(Case):
    """`judge` gives a share of the completions 1 for an even first digit and 0 for an odd one."""

    onset: int
    judge: str
    share: float
    seed: int

    def rewards(
        self, rewards: Mapping[str, torch.Tensor], completions: Completions, trainee: Trainee
    ) -> dict[str, torch.Tensor]:
        if trainee.gradient_steps < self.onset:
            return dict(rewards)
        given = rewards[self.judge]
        first = completions.tokens[:, 0]
        nonsense = ((first % 2 == 0) & (first != END)).to(given.dtype)
        drawn = generator("nonsense", self.seed, trainee.gradient_steps)
        hit = torch.rand(given.shape, generator=drawn) < self.share
        return {**rewards, self.judge: torch.where(hit, nonsense, given)}


class JudgeNonsense(Family):
    name: ClassVar[str] = "grpo.judge_nonsense"
    kind: ClassVar[Kind] = "grpo"

    def draw(self, rng: Random, onset: int) -> Nonsense:
        return Nonsense(onset, JUDGES[rng.getrandbits(1)], uniform(rng, 0.5, 1), rng.getrandbits(32))
