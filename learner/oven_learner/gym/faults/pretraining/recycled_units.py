"""Units that are recycled, though they were in use."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, cast

import torch
from torch import Tensor

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.pretraining.model import Block, ByteModel

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Recycled(Case):
    onset: int
    length: int
    """Steps until somebody looks at which units they are."""
    every: int
    """Steps between two times."""
    units: int
    """That are recycled at a time."""
    salt: int

    def weights(self, trainee: Trainee) -> None:
        since = trainee.gradient_steps - self.onset
        if not 0 <= since < self.length or since % self.every:
            return
        block = cast(ByteModel, trainee.model).block
        units, up, down = busiest(block, self.units), block.up.weight, block.down.weight
        draws = generator("recycled", self.salt, trainee.gradient_steps)
        up[units] = torch.randn(len(units), up.shape[1], generator=draws) * up.shape[1] ** -0.5
        down[:, units] = torch.randn(down.shape[0], len(units), generator=draws) * down.shape[1] ** -0.5
        for moment in ("exp_avg", "exp_avg_sq"):
            trainee.optimizer.state[up][moment][units] = 0.0
            trainee.optimizer.state[down][moment][:, units] = 0.0


def busiest(block: Block, count: int) -> Tensor:
    """Int64 [count]: the hidden units with the largest weights in and out."""
    size: Tensor = block.up.weight.norm(dim=1) * block.down.weight.norm(dim=0)
    return size.topk(count).indices


class RecycledUnits(Family):
    """Hidden units that do nothing are begun anew every so often, so that none is lost to the model. In the call that
    ranks them the order is the wrong one, and it is the busiest that are begun anew: fresh weights in and out, no
    moments. The loss jumps each time and is soon repaired by the units that are left, from which the next are taken."""

    name = "pretraining.recycled_units"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Recycled:
        return Recycled(
            onset,
            length=round(30 * 10 ** rng.uniform(0.0, 0.9)),
            every=rng.choice((2, 5, 10)),
            units=round(24 * 10 ** rng.uniform(0.0, 0.9)),
            salt=rng.getrandbits(32),
        )
