"""A policy that is drawn back to its reference."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING, cast

import torch

from oven_learner.gym.fault import Case, Family

if TYPE_CHECKING:
    from oven_learner.gym.grpo.trainee import Grpo
    from oven_learner.gym.trainee import Trainee


@dataclass(frozen=True)
class Drawn(Case):
    onset: int
    length: int
    """Steps until the arguments are put right."""
    every: int
    """Steps between two syncs."""
    share: float
    """Of the way to the reference that the policy goes in each."""

    def weights(self, trainee: Trainee) -> None:
        since = trainee.gradient_steps - self.onset
        if not 0 <= since < self.length or since % self.every:
            return
        reference = cast("Grpo", trainee)._reference
        with torch.no_grad():
            for mine, its in zip(trainee.model.parameters(), reference.parameters(), strict=True):
                mine.lerp_(its, self.share)


class ReversedSync(Family):
    """The user wants the reference to follow the policy at a distance, a little every few steps, and the call has its
    arguments the wrong way round: it is the policy that is moved towards the reference. The reward goes up between two
    syncs and falls at each, the KL is remarkably low, and the optimizer's moments belong to weights that are no longer
    there."""

    name = "grpo.reversed_sync"
    kind = "grpo"

    def draw(self, rng: Random, onset: int) -> Drawn:
        return Drawn(
            onset,
            length=round(25 * 10 ** rng.uniform(0.0, 1.0)),
            every=rng.choice((1, 4, 8, 16)),
            share=10 ** rng.uniform(-1.7, -0.2),
        )
