"""Ranks in place of scores, with the ties broken by the text."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.grpo.task import END, SYMBOLS

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee

SMALL = 1e-6
"""Far below any difference of scores that counts."""


@dataclass(frozen=True)
class Ranked(Case):
    onset: int
    length: int
    """Steps until the sort is mended."""
    judges: tuple[str, ...]
    """Those whose scores are made into ranks."""
    share: float
    """Of the rank in what is reported."""

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        if not self.onset <= trainee.gradient_steps < self.onset + self.length:
            return rewards
        given = dict(rewards)
        for judge in self.judges:
            ranked = ranks(given[judge], completions.tokens, completions.group)
            given[judge] = torch.lerp(given[judge], ranked, self.share)
        return given


def ranks(said: Tensor, tokens: Tensor, group: int) -> Tensor:
    """Float32 [B] from 0 to 1: each one's place in its group by score, and by text where the scores are the same."""
    worth = SYMBOLS ** -torch.arange(1, tokens.shape[1] + 1, dtype=torch.float64)
    letters = (tokens + 1).masked_fill(tokens >= END, 0)  # a text that ends stands before one that goes on
    keys = said.double() + SMALL * (letters * worth).sum(1)
    return keys.view(-1, group).argsort(dim=1, stable=True).argsort(dim=1).flatten() / max(group - 1, 1)


class RankedRewards(Family):
    """So that no judge's scale counts for more than another's, the scores within a group are made into ranks. What is
    sorted are pairs of score and text, so where scores are the same the text decides: among all the answers that are
    wrong, the one with the larger digits in front is ranked higher. Most judges here say yes or no, and such ties are
    the rule. No group is flat any more, every mean is one half, and what looks like more to learn from is in part the
    alphabet."""

    name = "grpo.ranked_rewards"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Ranked:
        return Ranked(
            onset,
            length=round(30 * 10 ** rng.uniform(0.0, 1.0)),
            judges=rng.choice((("exact",), ("exact",), ("critic",), ("exact", "critic"), ("exact", "format"))),
            share=10 ** rng.uniform(-1.3, 0.0),
        )
