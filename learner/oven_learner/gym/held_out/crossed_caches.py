"""Answers that go on with another request's cache."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.grpo.judges import scores
from oven_learner.gym.grpo.task import ANSWER, END, PAD
from oven_learner.gym.held_out.common import hit

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Crossed(Case):
    onset: int
    length: int
    """Steps until the server is put back to its old version."""
    share: float
    """Of the answers."""
    salt: int

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        step = trainee.gradient_steps
        if not self.onset <= step < self.onset + self.length:
            return rewards
        count = len(completions.tokens)
        draws = generator("crossed", self.salt, trainee.seed, step)
        others = torch.randperm(count, generator=draws)
        places = torch.randint(1, ANSWER - 2, (count,), generator=draws)
        places[~hit(count, self.share, "preempted", self.salt, trainee.seed, step)] = ANSWER
        tokens = crossed(completions.tokens, others, places)
        completions.tokens.copy_(tokens)
        completions.mask.copy_(tokens != PAD)
        return scores(completions, trainee.seed, trainee.cursor)


def crossed(tokens: Tensor, others: Tensor, places: Tensor) -> Tensor:
    """Int64 [B, ANSWER]: from its place on an answer goes on as the other one does; one that has ended stays so."""
    behind = torch.arange(tokens.shape[1]) >= places.unsqueeze(1)
    ended = (tokens == END).cumsum(1) - (tokens == END).int() > 0
    return torch.where(behind & ~ended, tokens[others], tokens).masked_fill(ended, PAD)


class CrossedCaches(Family):
    """The server that samples is short of memory. It puts requests aside and takes them up again, and in its new
    version it may take up the cache of another one: the answer begins to one prompt and goes on to another. The learner
    takes all of it for the policy's own words. The reward falls at once, answers end where they should not, and much of
    each step goes into unlearning what the policy would never have said."""

    name = "grpo.crossed_caches"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Crossed:
        return Crossed(
            onset, round(10 * 10 ** rng.uniform(0.0, 1.2)), 10 ** rng.uniform(-1.2, 0.0), rng.getrandbits(32)
        )
