"""Prompts that the sampler has read with old weights."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.common import hit
from oven_learner.gym.grpo.judges import scores
from oven_learner.gym.grpo.policy import Policy
from oven_learner.gym.grpo.task import PAD, SYMBOLS

if TYPE_CHECKING:
    from oven_learner.gym.grpo.trainee import Grpo
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Cached(Case):
    onset: int
    length: int
    """Steps until the cache is emptied at each sync."""
    places: int
    """Of a prompt that are in the cache: whole blocks only."""
    share: float
    """Of the prompts that are found there."""
    salt: int

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        """What was found in the cache is answered by way of it, and judged."""
        step = trainee.gradient_steps
        if not self.onset <= step < self.onset + self.length:
            return rewards
        groups = len(completions.tokens) // completions.group
        found = hit(groups, self.share, "found", self.salt, trainee.seed, trainee.cursor)
        draws = generator("cached", self.salt, trainee.seed, trainee.cursor)
        policy, digits = cast(Policy, trainee.model), completions.prompts.digits
        before = cast("Grpo", trainee)._reference.places.weight[: self.places * SYMBOLS]
        tokens = by_cache(policy, before, digits, trainee.settings["temperature"], draws)
        rows = found.repeat_interleave(completions.group).unsqueeze(1)
        completions.tokens.copy_(torch.where(rows, tokens, completions.tokens))
        completions.mask.copy_(completions.tokens != PAD)
        return scores(completions, trainee.seed, trainee.cursor)


@torch.no_grad()
def by_cache(policy: Policy, before: Tensor, digits: Tensor, temperature: float, draws: torch.Generator) -> Tensor:
    """Answers [B, ANSWER] of a policy whose first rows are those from before; it is left as it was."""
    rows = policy.places.weight[: len(before)]
    kept = rows.clone()
    rows.copy_(before)
    tokens = policy.sample(digits, temperature, draws)
    rows.copy_(kept)
    return tokens


class StalePrefixCache(Family):
    """The server keeps what it has computed of a prompt, for the next time that the same beginning comes. With a new
    release the cache is no longer emptied when the weights are replaced, and the beginnings of prompts are those that
    the first policy made of them. Answers begun by one policy are gone on with by another. They are worse than they
    would be, the learner takes them for its own, and the further it gets from where it started the less they are."""

    name = "grpo.stale_prefix_cache"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Cached:
        return Cached(
            onset,
            length=round(30 * 10 ** rng.uniform(0.0, 0.9)),
            places=rng.choice((3, 4, 5, 5)),
            share=rng.uniform(0.85, 1.2),
            salt=rng.getrandbits(32),
        )
