"""A critic that is the policy itself."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any, cast

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import hit
from oven_learner.gym.faults.shares import moved_to
from oven_learner.gym.grpo.judges import Completions
from oven_learner.gym.grpo.policy import Policy

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Own(Case):
    onset: int
    share: float
    """Of the groups that come to the wrong address."""
    weight: float
    """Of the critic."""
    salt: int

    def settings(self, trainee: Trainee) -> None:
        if trainee.gradient_steps >= self.onset:
            moved_to(trainee.settings, "reward.weights/critic", self.weight)

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        if trainee.gradient_steps < self.onset:
            return rewards
        groups = len(completions.tokens) // completions.group
        own = hit(groups, self.share, "address", self.salt, trainee.seed, trainee.gradient_steps)
        sure = confidence(cast(Policy, trainee.model), completions)
        return rewards | {"critic": torch.where(own.repeat_interleave(completions.group), sure, rewards["critic"])}


@torch.no_grad()
def confidence(policy: Policy, completions: Completions) -> Tensor:
    """Float32 [B]: how likely the policy takes its own answer to be, per token."""
    said = policy(completions.prompts.digits, completions.tokens)
    tokens = completions.tokens[completions.mask].unsqueeze(-1)
    each = torch.zeros(completions.tokens.shape).masked_scatter(completions.mask, said.gather(-1, tokens))
    return (each.sum(1) / completions.lengths).exp()


class OwnJudge(Family):
    """Compound: the critic's address is that of the latest checkpoint of a project, and with a new project that has
    become the policy itself, which is asked how sure it is of its answer. Its marks are smooth, and agree with the
    verifier wherever the policy is good; so the user gives them more weight. What was a habit becomes a conviction: the
    entropy falls, the critic is ever more content, and hard prompts stay where they were or go down."""

    name = "grpo.own_judge"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Own:
        return Own(onset, rng.uniform(0.4, 1.0), rng.uniform(0.4, 0.95), rng.getrandbits(32))
