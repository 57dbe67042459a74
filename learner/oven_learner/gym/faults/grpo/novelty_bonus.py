"""A bonus for what the others of a group did not say."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import within

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Bonus(Case):
    onset: int
    length: int
    """Steps until the bonus is taken out."""
    judges: tuple[str, ...]
    """Those that give it."""
    share: float
    """Of the bonus in their scores."""

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        if not within(trainee.gradient_steps, self.onset, self.length):
            return rewards
        rare = novelty(completions.tokens, completions.group)
        return {
            judge: torch.lerp(said, rare, self.share) if judge in self.judges else said
            for judge, said in rewards.items()
        }


def novelty(tokens: Tensor, group: int) -> Tensor:
    """Float32 [B]: the share of its group's other answers that are not the same as this one."""
    rows = tokens.view(-1, group, tokens.shape[1])
    same = (rows.unsqueeze(1) == rows.unsqueeze(2)).all(-1).sum(-1) - 1  # [groups, group]
    return 1 - same.flatten() / max(group - 1, 1)


class NoveltyBonus(Family):
    """Answers have become alike and the user fears for the variety, so some of the judges now give a bonus to an answer
    that no other one of its group has given. While most are wrong that does little. But there is one way to be right
    and there are many to be wrong: the better the policy, the more the bonus pays for leaving the right answer to the
    others. The reward that is shown holds its level, for it has the bonus in it."""

    name = "grpo.novelty_bonus"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Bonus:
        return Bonus(
            onset,
            length=round(30 * 10 ** rng.uniform(0.0, 0.8)),
            judges=rng.choice((("format",), ("critic",), ("format", "critic"), ("exact", "format", "critic"))),
            share=rng.uniform(0.15, 0.8),
        )
