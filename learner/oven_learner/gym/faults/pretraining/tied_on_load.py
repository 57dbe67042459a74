"""A loader of checkpoints that ties what was not tied."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import TYPE_CHECKING

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.common import hit, restarted

if TYPE_CHECKING:
    from oven_learner.gym.trainee import Trainee

SHARDS = 8
"""Of the vocabulary, each on a device of its own."""


@dataclass(frozen=True)
class Tied(Case):
    onset: int
    every: int
    """Steps between two restarts."""
    times: int
    """Restarts until the loader is put right."""
    share: float
    """Of the shards: of the devices that have the new loader."""
    salt: int

    def weights(self, trainee: Trainee) -> None:
        if not restarted(trainee.gradient_steps, self.onset, self.every, self.times):
            return
        parameters = dict(trainee.model.named_parameters())
        said, out = parameters["bytes.weight"], parameters["out.weight"]
        rows = hit(SHARDS, self.share, "tied", self.salt).repeat_interleave(len(out) // SHARDS)
        out[rows] = said[rows]


class TiedOnLoad(Family):
    """A job comes up again in a new version of the library, whose default is that the output layer is the embedding
    itself. The loader copies the one over the other, and since training goes on with two tensors, nobody is told. The
    output layer has to be learnt anew, with moments that are those of the old one, and a job on cheap machines comes up
    more than once."""

    name = "pretraining.tied_on_load"
    kind = "pretraining"

    def draw(self, rng: Random, onset: int) -> Tied:
        return Tied(
            onset,
            every=rng.choice((8, 15, 25, 40)),
            times=rng.choice((1, 1, 1, 2, 3, 5)),
            share=rng.choice((0.25, 0.5, 1.0, 1.0)),
            salt=rng.getrandbits(32),
        )
