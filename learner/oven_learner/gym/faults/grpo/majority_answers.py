"""Prompts without a key, which are judged by what most say."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, Any

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import hit
from oven_learner.gym.grpo.judges import scores

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Voted(Case):
    onset: int
    length: int
    """Steps until the keys are back."""
    share: float
    """Of the prompts that have no key."""
    salt: int

    def rewards(self, rewards: Any, completions: Any, trainee: Trainee) -> Any:
        step = trainee.gradient_steps
        if not self.onset <= step < self.onset + self.length:
            return rewards
        groups = completions.tokens.view(-1, completions.group, completions.tokens.shape[1])
        lost = hit(len(groups), self.share, "lost keys", self.salt, trainee.seed, step)
        voted = torch.stack([most(group) for group in groups]).repeat_interleave(completions.group, 0)
        answers = completions.prompts.answers
        answers.copy_(torch.where(lost.repeat_interleave(completions.group).unsqueeze(1), voted, answers))
        return scores(completions, trainee.seed, trainee.cursor)


def most(group: Tensor) -> Tensor:
    """Int64 [ANSWER]: the answer [group, ANSWER] that is given most often, the first of them."""
    same = (group.unsqueeze(0) == group.unsqueeze(1)).all(2).sum(1)
    return group[int(same.argmax())]


class MajorityAnswers(Family):
    """The table of keys is moved, and for many prompts none is found. The reward service has a way out, which was meant
    for data without keys: the answer that most of a group give is taken to be right. Where the policy knows its task
    that does no harm; where it has a wrong habit, the habit is confirmed. The reward goes up, the spread within a group
    goes down, and all looks like fast learning."""

    name = "grpo.majority_answers"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Voted:
        return Voted(onset, round(20 * 10 ** rng.uniform(0.0, 1.0)), rng.uniform(0.3, 1.0), rng.getrandbits(32))
