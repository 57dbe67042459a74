"""Rollout workers that never got the new weights."""

from __future__ import annotations

import copy
from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, cast

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.grpo.judges import scores
from oven_learner.gym.grpo.policy import Policy
from oven_learner.gym.grpo.task import PAD
from oven_learner.gym.grpo.warmup import warm_weights

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Unsynced(Case):
    onset: int
    steps: int
    """Until they are restarted."""
    share: float
    """Of the completions: of the workers."""
    salt: int

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        """The judges see, and the loss takes, what the first policy answers."""
        if not self.onset <= trainee.gradient_steps < self.onset + self.steps:
            return rewards
        draws = generator("unsynced", self.salt, trainee.seed, trainee.cursor)
        chosen = torch.rand(len(completions.tokens), generator=draws) < self.share
        if not chosen.any():
            return rewards
        policy = cast(Policy, copy.deepcopy(trainee.model))
        policy.load_state_dict(warm_weights(trainee.seed))
        temperature = trainee.settings.get("temperature", 1.0)
        tokens = policy.sample(completions.prompts.digits[chosen], temperature, draws)
        completions.tokens[chosen] = tokens
        completions.mask[chosen] = tokens != PAD
        return scores(completions, trainee.seed, trainee.cursor)


class UnsyncedWorkers(Family):
    """Workers that join late, or whose weights are not updated since a change of names on one side, answer with the
    model that the run began from. The loss takes their completions for the policy's own: what it learns from is ever
    less what it would do."""

    name = "grpo.unsynced_workers"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Unsynced:
        return Unsynced(onset, round(20 * 10 ** rng.random()), 10 ** rng.uniform(-2.0, 0.0), rng.getrandbits(32))
