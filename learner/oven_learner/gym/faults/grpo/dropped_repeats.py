"""Answers of a group that count only once."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import hit, within
from oven_learner.gym.faults.credit import credited

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Dropped(Case):
    onset: int
    length: int
    """Steps until the filter is taken out."""
    tokens: int
    """By which two answers are compared."""
    share: float
    """Of the repeats that are dropped."""
    salt: int

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        if not within(trainee.gradient_steps, self.onset, self.length):
            return loss
        step = credited(trainee, self)
        met = hit(len(step.answers), self.share, "repeats", self.salt, trainee.seed, trainee.gradient_steps)
        kept = ~(repeats(step.answers[:, : self.tokens], step.group) & met)
        return step.loss(step.credit, kept.unsqueeze(1).expand(step.mask.shape)[step.mask])


def repeats(answers: Tensor, group: int) -> Tensor:
    """Bool [B]: whether a row before it in its group is the same."""
    rows = answers.view(-1, group, answers.shape[1])
    same = (rows.unsqueeze(1) == rows.unsqueeze(2)).all(-1)  # [groups, group, group]
    return same.tril(-1).any(-1).flatten()


class DroppedRepeats(Family):
    """To save time, answers that a group has already are dropped before the backward pass, by a key that is made of the
    text or of its first tokens. The advantages were computed before that, over all of them, and balance no longer: of
    seven right answers that are the same one is left, with the small credit of a common one, against the full blame of
    each that is wrong. So there is more pushing down than up, the more the better the policy has become. Rewards and
    their spread are counted before the filter and show nothing."""

    name = "grpo.dropped_repeats"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Dropped:
        return Dropped(
            onset,
            length=round(25 * 10 ** rng.uniform(0.0, 0.9)),
            tokens=rng.choice((1, 2, 3, 99, 99)),
            share=rng.uniform(0.4, 1.0),
            salt=rng.getrandbits(32),
        )
