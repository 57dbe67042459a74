"""A device that computes wrongly now and then, and says nothing."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

import torch

from oven_learner.gym.fault import Case, Family, generator
from oven_learner.gym.faults.shard import Shard
from oven_learner.gym.trainee import Kind, Trainee


@dataclass(frozen=True)
class Flips(Case):
    onset: int
    lasts: int
    rate: float
    shard: Shard
    seed: int

    def gradients(self, trainee: Trainee) -> None:
        step = trainee.gradient_steps
        if not self.onset <= step < self.onset + self.lasts:
            return
        if float(torch.rand((), generator=generator("silent_corruption", self.seed, step))) >= self.rate:
            return
        for parameter, part in self.shard.slices(trainee.model):
            if parameter.grad is not None:
                parameter.grad.view(-1)[part].neg_()


class SilentCorruption(Family):
    """The gradient of one rank's shard comes out with its sign flipped, at some steps and not at others, until the node
    is taken out. The norm of the gradient is what it was, so that neither clipping nor a look at the norm finds it.

    Silent data corruption by defective processors: Dixit et al. 2021 (arXiv 2102.11245), Hochschild et al. 2021 (Cores
    that don't count, HotOS); among the interruptions of a large training run: Llama 3 (arXiv 2407.21783, table 5).
    """

    name: ClassVar[str] = "pretraining.silent_corruption"
    kind: ClassVar[Kind] = "pretraining"

    def draw(self, rng: Random, onset: int) -> Case:
        shard = Shard.of(rng.uniform(0.1, 0.5), rng)
        return Flips(onset, rng.randint(20, 100), rng.uniform(0.3, 1.0), shard, rng.getrandbits(32))
