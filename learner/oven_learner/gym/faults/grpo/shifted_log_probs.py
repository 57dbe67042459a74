"""The sampler's log-probabilities, one token off."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import hit, within
from oven_learner.gym.faults.credit import credited
from oven_learner.gym.grpo.loss import policy_loss

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Off(Case):
    onset: int
    length: int
    """Steps until the sampler goes back to its old version."""
    share: float
    """Of the tokens that come from samplers of the new one."""
    by: int
    """Tokens: above 0, each has the log-probability of an earlier one."""
    salt: int

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        if not within(trainee.gradient_steps, self.onset, self.length):
            return loss
        step = credited(trainee, self)
        own = step.log_probs.detach()
        off = hit(len(own), self.share, "off", self.salt, trainee.seed, trainee.gradient_steps)
        sampled = torch.where(off, own.roll(self.by), own)
        return loss - policy_loss(step.log_probs, own, step.credit) + policy_loss(step.log_probs, sampled, step.credit)


class ShiftedLogProbs(Family):
    """So that it is known with what probability each token was sampled, the learner goes over to the sampler's own
    log-probabilities. A new version of the sampler returns them beginning with the last token of the prompt, so that
    each stands beside the token after its own. The ratio of old and new, which should be close to one, is anything:
    half of what was to be praised is clipped away, and a bad token that was likely, beside one that was not, is
    punished many times over."""

    name = "grpo.shifted_log_probs"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Off:
        return Off(
            onset,
            length=round(15 * 10 ** rng.uniform(0.0, 1.1)),
            share=rng.uniform(0.2, 1.0),
            by=rng.choice((1, 1, -1)),
            salt=rng.getrandbits(32),
        )
