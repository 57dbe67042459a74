"""Attention over a context that lies on several devices, which no longer talk."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch
from torch import Tensor
from torch.nn import functional as F

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.forward import logits
from oven_learner.gym.faults.steps import pairs

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Broken(Case):
    onset: int
    length: int
    """Steps until the ring is closed again."""
    devices: int
    """That a context is spread over."""
    restarted: bool
    """Whether each device counts its places from 0."""

    def loss(self, loss: Tensor, trainee: Trainee) -> Tensor:
        if not self.onset <= trainee.gradient_steps < self.onset + self.length:
            return loss
        inputs, targets = pairs(trainee)
        said = apart(trainee, inputs, self.devices, restarted=self.restarted)
        return F.cross_entropy(said.flatten(0, 1), targets.flatten())


def apart(trainee: Trainee, tokens: Tensor, devices: int, *, restarted: bool) -> Tensor:
    """Logits [B, T, BYTES], where each device sees its own part of the context alone."""
    places = torch.arange(tokens.shape[1])
    part = len(places) // devices
    seen = (places.unsqueeze(1) // part == places // part).tril()
    return logits(trainee, tokens, seen=seen, places=places % part if restarted else places)


class BrokenRing(Family):
    """Compound: the context is spread over several devices, and after a change of the process groups each is in a ring
    of its own. It attends to its own part only, and as it takes itself for the first, it mostly counts its places from
    the beginning, too. The loss rises a little, as for want of context, and settles. The late places are not trained
    any more, the early ones learn to stand for them all, and what looks far back is left to decay."""

    name = "pretraining.broken_ring"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Broken:
        return Broken(
            onset,
            length=round(30 * 10 ** rng.uniform(0.0, 0.9)),
            devices=rng.choice((2, 4, 8, 16, 16)),
            restarted=rng.random() < 0.75,
        )
