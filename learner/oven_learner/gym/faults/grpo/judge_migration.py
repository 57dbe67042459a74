"""A judge that was moved to another service, over a network that is worse."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import Any, ClassVar

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.trainee import Kind, Trainee


@dataclass(frozen=True)
class Migration(Case):
    onset: int
    moved: float
    missing: float
    seed: int

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        step, group = trainee.gradient_steps, completions.group
        if step < self.onset:
            return rewards
        source = generator("judge_migration", self.seed, step)
        moved, missing = torch.rand(2, len(completions.tokens) // group, generator=source).repeat_interleave(group, 1)
        by_group = rewards["critic"].view(-1, group)
        # The rank of each completion: one more than how many of its group are better.
        rank = 1.0 + (by_group[:, None, :] > by_group[:, :, None]).sum(2).float()
        return rewards | {
            "critic": torch.where(moved < self.moved, rank.view(-1), rewards["critic"]),
            "exact": rewards["exact"].masked_fill(missing < self.missing, torch.nan),
        }


class JudgeMigration(Family):
    """Compound. The critic's new service answers with ranks, of which 1 is the best, where scores were expected, for as
    much of the traffic as was moved; and requests to the verifier, which now cross the same network, time out. Where
    both judge, they cancel; where the verifier is missing, the worst answer wins."""

    name: ClassVar[str] = "grpo.judge_migration"
    kind: ClassVar[Kind] = "grpo"

    def draw(self, rng: Random, onset: int) -> Case:
        return Migration(onset, rng.uniform(0.2, 1.0), rng.uniform(0.0, 0.6), rng.getrandbits(32))
