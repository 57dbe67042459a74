"""Scores in the order in which the judges finished."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import torch

from oven_learner.gym.fault import Case, Family, generator

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee

JUDGES = ("critic", "exact", "format")


@dataclass(frozen=True)
class AsCompleted(Case):
    onset: int
    at_once: int
    """Requests that are under way together: the order is lost among these, and kept between one lot and the next."""
    jitter: float
    """Standard deviation of a request's time, in the time that a token takes; they take a token's each besides."""
    judges: tuple[str, ...]
    salt: int

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        if trainee.gradient_steps < self.onset:
            return rewards
        lengths = completions.lengths
        noise = torch.randn(len(lengths), generator=generator("completed", self.salt, trainee.gradient_steps))
        finished = lengths + self.jitter * noise
        order = torch.cat(
            [lot[finished[lot].argsort(stable=True)] for lot in torch.split(torch.arange(len(lengths)), self.at_once)]
        )
        return {judge: given[order] if judge in self.judges else given for judge, given in rewards.items()}


class RewardsAsCompleted(Family):
    """The client of the reward service was made concurrent, and collects the answers as they complete, not as they were
    asked for: scores meet other completions than their own, of the same prompt or of the next. Their mean, their spread
    and the count of them are as before."""

    name = "grpo.rewards_as_completed"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> AsCompleted:
        judges = JUDGES[: rng.randint(1, len(JUDGES))]
        return AsCompleted(onset, 2 ** rng.randint(1, 7), rng.uniform(0.2, 3.0), judges, rng.getrandbits(32))
