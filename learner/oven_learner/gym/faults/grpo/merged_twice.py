"""What was learnt, added once more."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

import torch

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.grpo.warmup import warm_weights

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Merged(Case):
    onset: int
    scale: float
    """Of what is added: the adapter's own."""
    every: int
    """Steps between two saves, each of which merges again."""
    saves: int

    def weights(self, trainee: Trainee) -> None:
        save, since = divmod(trainee.gradient_steps - self.onset, self.every)
        if since or not 0 <= save < self.saves:
            return
        first = warm_weights(trainee.seed)
        with torch.no_grad():
            for name, weight in trainee.model.named_parameters():
                weight.add_(weight - first[name], alpha=self.scale)


class MergedTwice(Family):
    """The policy is a base model and an adapter. To serve it, the adapter is merged into the base, and a save that is
    made before the base is put back keeps the merged weights and the adapter too. What is loaded from it has all that
    was learnt twice over, or more where the adapter has a scale: far too sure of some things, and wrong in others."""

    name = "grpo.merged_twice"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Merged:
        return Merged(onset, 10 ** rng.uniform(-0.3, 0.6), rng.choice((10, 20, 40)), rng.choice((1, 1, 1, 2, 3)))
