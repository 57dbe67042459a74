"""Settings of a pretraining run that are wrong, or that the user changed on purpose."""

from __future__ import annotations

import math
from random import Random
from typing import Self

import torch
from torch import Tensor

from oven_bench.gym.fault import Fault, Step, fault
from oven_bench.gym.seeded_draws import integer, log10_uniform, log_uniform, random_seed, uniform, whole
from oven_bench.gym.tasks.pretraining.corpus import pool


@fault("pretraining.healthy", written="development", healthy=True)
class Healthy(Fault):
    """Nothing is wrong, and nothing is new."""


@fault("pretraining.lr_too_high", written="development")
class RateTooHigh(Fault):
    """The learning rate is set too high, and stays so."""

    factor: float = log_uniform(5, 50)

    def settings(self, step: Step) -> None:
        step.settings["learning_rate"] *= self.factor


@fault("pretraining.lr_too_low", written="development")
class RateTooLow(Fault):
    """The learning rate is set too low, from the first step of the run or from the onset on."""

    divisor: float = log_uniform(10, 100)

    @classmethod
    def draw(cls, rng: Random, onset: int) -> Self:
        return super().draw(rng, onset * rng.getrandbits(1))

    def settings(self, step: Step) -> None:
        step.settings["learning_rate"] *= 1 / self.divisor


@fault("pretraining.weight_decay_too_high", written="development")
class WeightDecayTooHigh(Fault):
    """The weight decay is set far too high, and stays so."""

    factor: float = log_uniform(30, 1000)

    def settings(self, step: Step) -> None:
        step.settings["weight_decay"] *= self.factor


@fault("pretraining.growing_weights", written="seventh set")
class GrowingWeights(Fault):
    """The decoupled weight decay has lost its sign: each step makes all weights a little larger, and the output layer
    surer than it has reason to be."""

    growth: float = log10_uniform(0.3, 1.15)  # in units of the learning rate

    def settings(self, step: Step) -> None:
        step.settings["weight_decay"] = -self.growth


@fault("pretraining.clip_too_tight", written="fourth set")
class ClipTooTight(Fault):
    """The gradient is clipped far below its norm, which is logged unclipped. Adam's second moments remember the larger
    gradients, so that the steps stay short until they have forgotten them."""

    clip: float = log10_uniform(-3.0, -0.3)

    def settings(self, step: Step) -> None:
        step.settings["clip"] = self.clip


@fault("pretraining.large_epsilon", written="fifth set")
class LargeEpsilon(Fault):
    """Adam's epsilon is larger than the root of most second moments: most weights all but stop, rare tokens first."""

    epsilon: float = log10_uniform(-4.0, -1.0)

    def settings(self, step: Step) -> None:
        step.optimizer.param_groups[0]["eps"] = self.epsilon


@fault("pretraining.long_momentum", written="fifth set")
class LongMomentum(Fault):
    """Adam's β₁ is that of a run of a million small steps. Bias correction takes the full first moment for a young one:
    steps are too long for some time, and then follow each turn too late."""

    missing: float = log10_uniform(-3.0, -1.3)

    @property
    def momentum(self) -> float:
        return 1 - self.missing

    def settings(self, step: Step) -> None:
        group = step.optimizer.param_groups[0]
        group["betas"] = (self.momentum, group["betas"][1])


@fault("pretraining.cosine_decay", written="development", healthy=True)
class CosineDecay(Fault):
    """The user's own schedule ends: the rate falls along a cosine to a tenth, and stays there."""

    steps: int = whole(100, 50)

    def settings(self, step: Step) -> None:
        done = min(1.0, step.since / self.steps)
        step.settings["learning_rate"] *= 0.1 + 0.9 * (1 + math.cos(math.pi * done)) / 2


@fault("pretraining.second_warmup", written="development", healthy=True)
class SecondWarmup(Fault):
    """The user warms up a second time, as for new data: the rate falls and climbs back."""

    length: int = whole(10, 50)

    def settings(self, step: Step) -> None:
        step.settings["learning_rate"] *= (step.since + 1) / self.length


@fault("pretraining.batch_ramp", written="fifth set", healthy=True, source="Brown et al. 2020, appendix B (GPT-3)")
class BatchRamp(Fault):
    """The batch grows by plan. The gradient's norm falls, its cosine with the momentum rises and the loss gets quiet,
    as where a run has stopped learning; now and then a row was read before."""

    ramp: int = integer(1, 30)  # batches until it has grown to the full
    times: int = integer(2, 4)  # as large as it is then
    seed: int = random_seed()

    ROWS = 4096  # that the added rows are taken from

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        since = step.batches_since
        added = round(len(batch) * (self.times - 1) * min(1.0, (since + 1) / self.ramp))
        first = since * len(batch) * (self.times - 1)
        rows = pool(self.ROWS, self.seed)[(first + torch.arange(added)) % self.ROWS]
        return torch.cat((batch, rows[:, : batch.shape[1]]))


@fault("pretraining.small_batches", written="development", healthy=True)
class SmallBatches(Fault):
    """Some batches hold a few rows only, as at the ends of shards: the gauges are noisy. Were all of them so small, a
    lower rate would be right."""

    rows: int = whole(4, 2)
    share: float = uniform(0.2, 0.4)  # of the batches
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        struck = torch.rand((), generator=self.draws("small", step.cursor)) < self.share
        return batch[: self.rows] if struck else batch


@fault("pretraining.exhausted_data", written="development", healthy=True)
class ExhaustedData(Fault):
    """The data are used up: a small corpus comes round again and again, and the loss flattens. Each pass still teaches
    something, and there is no more data to be had."""

    rows: int = whole(1600, 400)  # different ones
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        return pool(self.rows, self.seed)[
            torch.randint(self.rows, (len(batch),), generator=self.draws("row", step.cursor))
        ]
