"""A checkpoint of the optimizer that came back with a hole in it."""

from __future__ import annotations

from dataclasses import dataclass
from random import Random
from typing import ClassVar

from oven_learner.gym.fault import Case, Family
from oven_learner.gym.faults.shard import Shard, moments
from oven_learner.gym.trainee import Kind, Trainee


@dataclass(frozen=True)
class Hole(Case):
    onset: int
    shard: Shard

    def weights(self, trainee: Trainee) -> None:
        if trainee.gradient_steps != self.onset:
            return
        for parameter, part in self.shard.slices(trainee.model):
            if (squares := moments(trainee.optimizer, parameter).get("exp_avg_sq")) is not None:
                squares.view(-1)[part].zero_()


class SecondMomentsLost(Family):
    """A shard's second moments are zero after a restart, while its first moments and the count of steps are there. Bias
    correction believes the count, so that for some steps the shard moves many times further than the rate says. It
    happens once; the rate that is logged never moves."""

    name: ClassVar[str] = "pretraining.second_moments_lost"
    kind: ClassVar[Kind] = "pretraining"

    def draw(self, rng: Random, onset: int) -> Case:
        return Hole(onset, Shard.of(0.05 * 20 ** rng.random(), rng))
