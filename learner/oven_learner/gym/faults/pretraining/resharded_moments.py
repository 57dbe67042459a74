"""Moments that were cut up for another number of devices."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import restarted

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Resharded(Case):
    onset: int
    every: int
    """Steps between two restarts."""
    times: int
    """Restarts with another number of devices."""
    start: float
    """Where in the flat moments the first wrong shard begins, as a share of them."""
    share: float
    """Of the flat moments that lie in wrong shards."""
    offset: int
    """Numbers by which these are off."""

    def weights(self, trainee: Trainee) -> None:
        if not restarted(trainee.gradient_steps, self.onset, self.every, self.times):
            return
        states = [trainee.optimizer.state[parameter] for parameter in trainee.model.parameters()]
        for moment in ("exp_avg", "exp_avg_sq"):
            tensors = [state[moment] for state in states]
            moved = shifted(torch.cat([one.flatten() for one in tensors]), self.start, self.share, self.offset)
            for one, part in zip(tensors, torch.split(moved, [one.numel() for one in tensors]), strict=True):
                one.copy_(part.view_as(one))


def shifted(flat: Tensor, start: float, share: float, offset: int) -> Tensor:
    """[N]: a stretch of it goes round by `offset` numbers; the rest is as it was."""
    first = int(start * (1 - share) * len(flat))
    last = first + max(1, int(share * len(flat)))
    return torch.cat((flat[:first], flat[first:last].roll(offset), flat[last:]))


class ReshardedMoments(Family):
    """The optimizer's state is kept as one flat vector in shards, with some padding to each. A job comes up on another
    number of devices, and the reader of the shards takes the padding to be numbers: from some place on every moment is
    that of a weight further down. The weights are read from another file and are right. A weight with large gradients
    may now have the small second moment of one that hardly has any, and makes a long step."""

    name = "pretraining.resharded_moments"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Resharded:
        return Resharded(
            onset,
            every=rng.choice((3, 6, 12)),
            times=rng.choice((1, 2, 4, 8, 12)),
            start=rng.random(),
            share=10 ** rng.uniform(-0.5, 0.0),
            offset=round(10 ** rng.uniform(0.0, 4.0)),
        )
