"""A budget of tokens that leaves the longest answers out."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.grpo.task import PAD

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Budgeted(Case):
    onset: int
    length: int
    """Steps until somebody counts the answers that are trained on."""
    budget: int
    """Tokens of a step that the learner has room for."""

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        """All are judged; what does not fit is in no loss."""
        if self.onset <= trainee.gradient_steps < self.onset + self.length:
            left_out = ~fitting(completions.lengths, self.budget).unsqueeze(1)
            completions.tokens.masked_fill_(left_out, PAD)
            completions.mask.masked_fill_(left_out, False)
        return rewards


def fitting(lengths: Tensor, budget: int) -> Tensor:
    """Bool [B]: the shortest come first, for as long as their sum is within the budget."""
    order = lengths.argsort(stable=True)
    return torch.zeros(len(lengths), dtype=torch.bool).scatter(0, order, lengths[order].cumsum(0) <= budget)


class TokenBudget(Family):
    """After a step ran out of memory, the learner packs its answers within a budget of tokens, the shortest first, and
    drops without a word what does not fit. The budget is too small for a whole step. It is always the long answers that
    are in no loss: those of the hard prompts, and those that do not end, which are marked down and never unlearnt."""

    name = "grpo.token_budget"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Budgeted:
        return Budgeted(onset, round(40 * 10 ** rng.uniform(0.0, 0.9)), rng.randint(60, 600))
