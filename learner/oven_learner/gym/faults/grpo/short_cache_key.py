"""A cache of scores whose key is too short."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee

JUDGES = ("exact", "format", "critic")


@dataclass(frozen=True)
class Cached(Case):
    onset: int
    key: int
    """Tokens of the completion, beside the prompt."""
    judges: tuple[str, ...]
    """That are asked through the cache."""

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        if trainee.gradient_steps < self.onset:
            return rewards
        first = asked_first(completions.tokens, completions.group, self.key)
        return {judge: score[first] if judge in self.judges else score for judge, score in rewards.items()}


def asked_first(tokens: Tensor, group: int, key: int) -> Tensor:
    """Int64 [batch]: for each completion the first of its group that begins with the same tokens."""
    prompts = len(tokens) // group
    begins = tokens[:, :key].reshape(prompts, group, key)
    alike = (begins.unsqueeze(2) == begins.unsqueeze(1)).all(-1)  # [prompts, group, group]
    first = alike.int().argmax(-1)  # of equal ones the first
    return (first + group * torch.arange(prompts).unsqueeze(1)).flatten()


class ShortCacheKey(Family):
    """Scores are kept so as not to be asked for twice, by the prompt and a piece of the completion: what begins alike
    is taken for the same, and has the score of whichever came first. Nothing is learnt of the tokens behind the piece;
    of none, where the key is the prompt alone."""

    name = "grpo.short_cache_key"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Cached:
        return Cached(onset, rng.randint(0, 4), tuple(rng.sample(JUDGES, rng.randint(1, len(JUDGES)))))
