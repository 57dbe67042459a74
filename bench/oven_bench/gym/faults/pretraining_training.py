"""Pretraining faults of settings, loss, gradients, weights and optimizer state, and healthy runs that only look ill."""

from __future__ import annotations

import math
from collections.abc import Iterator
from dataclasses import dataclass
from functools import cache
from random import Random
from typing import Self

import torch
from torch import Tensor
from torch.linalg import vector_norm as norm
from torch.nn import functional as F

from oven_bench.gym.fault import DividedRate, Fault, MultipliedRate, Step, fault
from oven_bench.gym.seeded_draws import (
    choice,
    count,
    drawn,
    integer,
    log10_uniform,
    log_uniform,
    random_seed,
    uniform,
    whole,
)
from oven_bench.gym.tasks.pretraining.byte_model import BYTES
from oven_bench.gym.tasks.pretraining.corpus import SHARES, corpus


@dataclass(frozen=True)
class Shard:
    """A contiguous part of a model's weights, from `begin` to `end` as shares (0..1) of all weights in their order: the
    part that one rank owns under ZeRO (Rajbhandari et al. 2020, section 5)."""

    begin: float
    end: float

    @classmethod
    def draw(cls, share: float, rng: Random) -> Shard:
        """A shard of this size at a random position."""
        begin = rng.uniform(0.0, 1.0 - share)
        return cls(begin, begin + share)

    def slices(self, model: torch.nn.Module) -> Iterator[tuple[torch.nn.Parameter, slice]]:
        """Each parameter that overlaps the shard, with the overlap as a slice of the flattened parameter."""
        parameters = list(model.parameters())
        total = sum(parameter.numel() for parameter in parameters)
        first, last = round(self.begin * total), round(self.end * total)
        offset = 0
        for parameter in parameters:
            begin, end = max(first - offset, 0), min(last - offset, parameter.numel())
            if begin < end:
                yield parameter, slice(begin, end)
            offset += parameter.numel()


@fault("pretraining.healthy", healthy=True)
class Healthy(Fault):
    """Nothing is wrong."""


@fault("pretraining.lr_too_high")
class RateTooHigh(MultipliedRate):
    """The learning rate is too high from the onset on."""

    factor: float = log_uniform(5, 50)


@fault("pretraining.lr_too_low")
class RateTooLow(DividedRate):
    """The learning rate is too low, from the first step of the run or from the onset on."""

    divisor: float = log_uniform(10, 100)

    @classmethod
    def draw(cls, rng: Random, onset: int) -> Self:
        return super(DividedRate, cls).draw(rng, onset * rng.getrandbits(1))


@fault("pretraining.weight_decay_too_high")
class WeightDecayTooHigh(Fault):
    """The weight decay is far too high from the onset on."""

    factor: float = log_uniform(30, 1000)

    def settings(self, step: Step) -> None:
        step.settings["weight_decay"] *= self.factor


@fault("pretraining.growing_weights")
class GrowingWeights(Fault):
    """The weight decay has the wrong sign. Each step makes all weights a little larger and the output layer more
    confident than it should be."""

    growth: float = log10_uniform(0.3, 1.15)  # in units of the learning rate

    def settings(self, step: Step) -> None:
        step.settings["weight_decay"] = -self.growth


@fault("pretraining.clip_too_tight")
class ClipTooTight(Fault):
    """The gradient is clipped far below its norm, and the log shows the unclipped norm. Adam's second moments remember
    the larger gradients, so the steps stay short until they have decayed."""

    clip: float = log10_uniform(-3.0, -0.3)

    def settings(self, step: Step) -> None:
        step.settings["clip"] = self.clip


@fault("pretraining.second_warmup", healthy=True)
class SecondWarmup(Fault):
    """The user warms up a second time, as for new data: the learning rate falls and climbs back."""

    length: int = whole(10, 50)

    def settings(self, step: Step) -> None:
        step.settings["learning_rate"] *= (step.since + 1) / self.length


@fault("pretraining.balanced_classes")
class BalancedClasses(Fault):
    """Rare bytes get more weight in the loss: their inverse frequency, or a root of it. The model then predicts them
    far too often."""

    length: int = count(30, 0.9)
    power: float = choice((0.2, 0.33, 0.33, 0.5, 0.5, 0.67, 1.0))

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        weight = frequencies().pow(-self.power)
        return F.cross_entropy(step.logits.flatten(0, 1), step.targets.flatten(0, 1), weight=weight)


@cache
def frequencies() -> Tensor:
    """Float32 [BYTES]: frequency of each byte in the user's mixture, at least 1e-5."""
    total = torch.zeros(BYTES)
    for kind, share in SHARES.items():
        rows = corpus().train[kind]
        total += share * torch.bincount(rows.flatten().long(), minlength=BYTES) / rows.numel()
    return total.clamp(min=1e-5)


@fault("pretraining.not_a_number")
class NotANumber(Fault):
    """The loss, or one element of the gradient, is NaN for some steps. One step is enough to break the weights."""

    length: int = whole(1, 20)
    in_loss: bool = drawn(lambda rng: bool(rng.getrandbits(1)))

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        return loss * math.nan if self.in_loss else loss

    def gradients(self, step: Step) -> None:
        if not self.in_loss:
            gradients(step.model)[0].view(-1)[0] = math.nan


@fault("pretraining.outlier_gradient")
class OutlierGradient(Fault):
    """A few gradients are far too large and point in random directions. Clipping makes them harmless. Unclipped, as for
    half of the users here, they fill Adam's second moment, and updates stay tiny for a long time."""

    clipped: bool = drawn(lambda rng: bool(rng.getrandbits(1)))
    steps: int = whole(1, 3)
    factor: float = log_uniform(300, 10_000)  # times the norm of the true gradient
    seed: int = random_seed()

    def settings(self, step: Step) -> None:
        if not self.clipped:
            step.settings["clip"] = 1e9

    def gradients(self, step: Step) -> None:
        if step.since >= self.steps:
            return
        draws = self.draws("outlier", step.number)
        true = gradients(step.model)
        random = [torch.randn(gradient.shape, generator=draws) for gradient in true]
        true_norm, random_norm = (norm(torch.stack([norm(each) for each in side])) for side in (true, random))
        for gradient, noise in zip(true, random, strict=True):
            gradient.copy_(noise * (self.factor * true_norm / random_norm))


def gradients(model: torch.nn.Module) -> list[Tensor]:
    """The gradients of all parameters that have one, not copied."""
    return [parameter.grad for parameter in model.parameters() if parameter.grad is not None]


@fault("pretraining.silent_corruption")
class SilentCorruption(Fault):
    """One rank flips the sign of its gradient shard at some steps until the node is replaced. The norm is unchanged, so
    neither clipping nor a chart of the norm shows it (Dixit et al. 2021, arXiv 2102.11245; Hochschild et al. 2021,
    HotOS; Llama 3, arXiv 2407.21783, table 5)."""

    shard: Shard = drawn(lambda rng: Shard.draw(rng.uniform(0.1, 0.5), rng))
    length: int = integer(20, 100)
    share: float = uniform(0.3, 1.0)  # of the steps
    seed: int = random_seed()

    def gradients(self, step: Step) -> None:
        if float(torch.rand((), generator=self.draws("silent_corruption", step.number))) >= self.share:
            return
        for parameter, part in self.shard.slices(step.model):
            if parameter.grad is not None:
                parameter.grad.view(-1)[part].neg_()


@fault("pretraining.moments_shrunk")
class MomentsShrunk(Fault):
    """Adam's second moment shrinks once, as after a resume that lost it, while the step count stays. Updates are far
    too large until the average over 1/(1 − β₂) steps has filled up again."""

    length: int = 1
    factor: float = log_uniform(1e-2, 1e-8)

    def weights(self, step: Step) -> None:
        for parameter in step.model.parameters():
            step.moments(parameter)["exp_avg_sq"].mul_(self.factor)


@fault("pretraining.careless_resume")
class CarelessResume(Fault):
    """After a pre-emption some layers are freshly initialised, the optimizer state is lost, and the schedule restarts
    its warm-up towards a peak that the run had left long ago."""

    missing: Shard = drawn(lambda rng: Shard.draw(rng.uniform(0.03, 0.5), rng))
    warmup: int = integer(1, 50)
    peak: float = uniform(1.0, 6.0)
    seed: int = random_seed()

    def settings(self, step: Step) -> None:
        step.settings["learning_rate"] *= self.peak * min(1.0, (step.since + 1) / self.warmup)

    def weights(self, step: Step) -> None:
        if step.since:
            return
        for parameter in step.model.parameters():
            for moment in step.moments(parameter).values():
                moment.zero_()
        draws = self.draws("careless_resume")
        for parameter, part in self.missing.slices(step.model):
            weights = parameter.view(-1)[part]
            weights.copy_(torch.randn(weights.shape, generator=draws) * parameter.std())


@fault("pretraining.coarse_weights")
class CoarseWeights(Fault):
    """Each step rounds the weights to few bits without a master copy (Zamirai et al. 2020, arXiv 2010.06192). Updates
    below half a unit in the last place are lost, so most weights do not move."""

    bits: float = uniform(2.5, 6.5)

    def weights(self, step: Step) -> None:
        for parameter in step.model.parameters():
            significand, exponent = torch.frexp(parameter)
            levels = 2.0**self.bits
            parameter.copy_(torch.ldexp((significand * levels).round() / levels, exponent))


def _rows_of_one_rank(rng: Random) -> slice:
    """A rank's part of the vocabulary, in the lower half of the bytes, where source code is."""
    ranks = rng.choice((2, 4, 8))
    first = BYTES // ranks * rng.randrange(ranks // 2)
    return slice(first, first + BYTES // ranks)


@fault("pretraining.exploding_rows")
class ExplodingRows(Fault):
    """One rank's rows of embedding and head grow by a constant factor per step (sharded as in Megatron-LM, arXiv
    1909.08053, section 3). The norm of all weights hardly shows it at first."""

    rows: slice = drawn(_rows_of_one_rank)
    length: int = integer(15, 90)
    factor: float = uniform(1.01, 1.12)

    def weights(self, step: Step) -> None:
        for parameter in step.model.parameters():
            if parameter.ndim == 2 and parameter.shape[0] == BYTES:
                parameter[self.rows].mul_(self.factor)


@fault("pretraining.weight_noise")
class WeightNoise(Fault):
    """Noise disturbs the weights once, like a bad load, a bit error or a wrong average."""

    length: int = 1
    deviation: float = log_uniform(0.1, 3)  # of the noise, relative to the root mean square of each matrix
    seed: int = random_seed()

    def weights(self, step: Step) -> None:
        draws = self.draws("noise")
        for parameter in step.model.parameters():
            size = parameter.square().mean().sqrt()
            parameter.add_(torch.randn(parameter.shape, generator=draws) * (self.deviation * size))
