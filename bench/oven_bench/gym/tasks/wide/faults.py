"""What goes wrong in a user's own loop over text, and two ways to run it that are right."""

from __future__ import annotations

import math

import torch
from torch import Tensor

from oven_bench.gym.fault import Fault, Step, fault
from oven_bench.gym.seeded_draws import integer, log10_uniform, log_uniform, random_seed, uniform, whole
from oven_bench.gym.tasks.pretraining.byte_model import BYTES
from oven_bench.gym.usual_mistakes import (
    DividedRate,
    FromTheStart,
    LossNotANumber,
    MultipliedDecay,
    MultipliedRate,
    SetClip,
)


@fault("wide.healthy", written="trials set", healthy=True)
class Healthy(Fault):
    """Nothing is wrong, and nothing is new."""


@fault("wide.small_batches", written="trials set", healthy=True, source="Malladi et al. 2022 (arXiv 2205.10287)")
class SmallBatches(FromTheStart):
    """The user has a small machine: batches of a few rows from the start, and a rate that is lower by the root of that.
    All gauges are noisy."""

    rows: int = whole(4, 2)

    def settings(self, step: Step) -> None:
        step.settings["learning_rate"] *= math.sqrt(self.rows / step.settings["batch"])
        step.settings["batch"] = self.rows


@fault("wide.own_cooldown", written="trials set", healthy=True, source="Hägele et al. 2024 (arXiv 2405.18392)")
class OwnCooldown(Fault):
    """The user's schedule ends with a cool-down: the rate falls in a straight line to a twentieth."""

    steps: int = whole(100, 40)

    def settings(self, step: Step) -> None:
        step.settings["learning_rate"] *= 1 - 0.95 * min(1.0, step.since / self.steps)


@fault("wide.rate_too_high", written="trials set")
class RateTooHigh(MultipliedRate):
    """The learning rate is set too high by a power of ten or so, and stays so."""

    factor: float = log_uniform(8, 80)


@fault("wide.rate_too_low", written="trials set")
class RateTooLow(DividedRate):
    """The learning rate is too low from the start, as where a schedule's factor is applied twice: the run crawls."""

    divisor: float = log_uniform(5, 50)


@fault("wide.clip_too_tight", written="trials set")
class ClipTooTight(SetClip):
    """The gradient is clipped far below its norm. Adam's second moments remember larger ones, so that steps are short
    until they have forgotten them."""

    clip: float = log10_uniform(-1.0, -3.5)


@fault("wide.weight_decay_too_strong", written="trials set")
class WeightDecayTooStrong(MultipliedDecay):
    """The weight decay is far too strong, and stays so: the weights shrink faster than they learn."""

    factor: float = log_uniform(50, 2000)


@fault("wide.garbled_stretch", written="trials set", source="Chowdhery et al. 2022 (PaLM, arXiv 2204.02311, §5.1)")
class GarbledStretch(Fault):
    """For a stretch of the data most rows are noise, as of a damaged shard."""

    length: int = whole(10, 60)
    share: float = uniform(0.5, 1.0)
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        struck = self.struck(len(batch), "garbled", step.cursor).unsqueeze(1)
        noise = torch.randint(BYTES, batch.shape, generator=self.draws("noise", step.cursor))
        return torch.where(struck, noise, batch)


@fault("wide.not_a_number", written="trials set", source="Micikevicius et al. 2018 (arXiv 1710.03740)")
class NotANumber(LossNotANumber):
    """The loss of one step is not a number. Nothing in the loop skips such a step: the weights are gone."""

    length: int = 1


@fault("wide.outlier_batches", written="trials set", source="Molybog et al. 2023 (arXiv 2304.09871)")
class OutlierBatches(Fault):
    """A few steps have gradients that point anywhere and are huge, in one matrix after another, which a clip turns
    into steps of the usual length in a wrong direction, and moments that stay large."""

    length: int = integer(5, 20)
    size: float = log10_uniform(1.0, 3.0)  # × the gradient's own norm
    seed: int = random_seed()

    def gradients(self, step: Step) -> None:
        for index, parameter in enumerate(step.model.parameters()):
            assert parameter.grad is not None
            noise = torch.randn(parameter.shape, generator=self.draws("outlier", step.cursor, index))
            parameter.grad.add_(noise, alpha=float(self.size * parameter.grad.norm() / noise.norm()))
