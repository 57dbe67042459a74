"""The sampler's log-probabilities, one place off."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.held_out.common import again, hit

if TYPE_CHECKING:
    from oven_learner.gym.grpo.trainee import Grpo
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Off(Case):
    onset: int
    length: int
    """Steps until the two are lined up."""
    share: float
    """Of the answers: those of the servers with the new version."""
    salt: int

    def loss(self, loss: torch.Tensor, trainee: Trainee) -> torch.Tensor:
        if not self.onset <= trainee.gradient_steps < self.onset + self.length:
            return loss
        step = again(trainee, self)
        own = step.log_probs.detach()
        new = hit(len(step.answers), self.share, "new version", self.salt, trainee.gradient_steps)[step.rows]
        sampled = torch.where(new, late(own, step.rows), own)
        return step.loss(cast("Grpo", trainee)._knobs.beta, sampled, torch.ones_like(new))


def late(log_probs: Tensor, rows: Tensor) -> Tensor:
    """[N]: each token has that of the token before it in its row [N], and the first one has that of a certain token."""
    moved = torch.zeros_like(log_probs)
    moved[1:] = log_probs[:-1].where(rows[1:] == rows[:-1], 0.0)
    return moved


class ShiftedLogProbs(Family):
    """The user takes the old log-probabilities from the servers that sampled, to spare a pass. Some servers count the
    prompt's last token among them, so that every number belongs to the token before. The ratio, which should be one, is
    anything: good tokens fall out of the trust region and are passed over, and bad ones that it sees as too likely are
    pushed down with a factor that has no bound. The loss leaves its narrow range and the norm of the gradient jumps,
    and the judges see nothing yet."""

    name = "grpo.shifted_log_probs"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Off:
        return Off(onset, round(15 * 10 ** rng.uniform(0.0, 1.1)), rng.uniform(0.2, 1.0), rng.getrandbits(32))
