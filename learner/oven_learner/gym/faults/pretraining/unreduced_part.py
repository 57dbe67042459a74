"""A part of the model whose gradients do not arrive."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.shard import Shard

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Unreduced(Case):
    onset: int
    part: Shard

    def gradients(self, trainee: Trainee) -> None:
        if trainee.gradient_steps < self.onset:
            return
        for parameter, elements in self.part.slices(trainee.model):
            if parameter.grad is not None:
                parameter.grad.view(-1)[elements] = 0.0


class UnreducedPart(Family):
    """Layers that were frozen for a trial and are so still after the restart, or a stage behind a link that is down,
    whose buffer of gradients stays empty: a part of the weights learns no more, and the others go on around it."""

    name = "pretraining.unreduced_part"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Unreduced:
        return Unreduced(onset, Shard.of(rng.uniform(0.15, 0.95), rng))
