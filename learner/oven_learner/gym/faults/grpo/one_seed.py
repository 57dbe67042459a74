"""Processes that all begin from one seed."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.grpo.judges import scores
from oven_learner.gym.grpo.task import Prompts

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Seeded(Case):
    onset: int
    workers: int
    """That draw the same prompts."""
    requests: int
    """Of a group that get the same answer."""

    def batch(self, batch: Any, cursor: int) -> Any:
        if cursor < self.onset:
            return batch
        first = firsts(len(batch.digits), self.workers)
        return Prompts(batch.digits[first], batch.levels[first], batch.answers[first])

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        if trainee.gradient_steps < self.onset:
            return rewards
        first = firsts(len(completions.tokens), self.requests)
        completions.tokens.copy_(completions.tokens[first])
        completions.mask.copy_(completions.mask[first])
        return scores(completions, trainee.seed, trainee.cursor)


def firsts(count: int, run: int) -> Tensor:
    """Int64 [count]: for each, the first of the `run` neighbours that it is one of."""
    return torch.arange(count) // run * run


class OneSeed(Family):
    """Compound: for the sake of a bug that nobody could reproduce, a seed is set at the start of every process and sent
    with every request. The loader's workers now draw the same prompts, and the sampler gives the same answer to the
    same prompt, so that a group has few different answers or one alone. The numbers of prompts and answers are as
    ever; what differs among them is a fraction."""

    name = "grpo.one_seed"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Seeded:
        workers, requests = rng.choice(((2, 1), (2, 2), (4, 2), (2, 4), (4, 4), (8, 4), (4, 8), (16, 2), (1, 4)))
        return Seeded(onset, workers, requests)
