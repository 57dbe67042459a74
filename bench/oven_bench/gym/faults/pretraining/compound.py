"""Several faults at once, as one change or one restart brings them."""

from __future__ import annotations

import math
import re

import torch
from torch import Tensor
from torch.linalg import vector_norm as norm

from oven_bench.gym.fault import Fault, Step, due, fault
from oven_bench.gym.faults.pretraining.gradients import gradients_of, without
from oven_bench.gym.faults.rewriting import rewritten
from oven_bench.gym.faults.shards import Shard
from oven_bench.gym.seeded_draws import (
    chance,
    choice,
    drawn,
    integer,
    log10_uniform,
    log_uniform,
    random_seed,
    uniform,
    whole,
)
from oven_bench.gym.tasks.pretraining.byte_model import BYTES


@fault("pretraining.bad_stretch_and_rate", written="development")
class BadStretchAndRate(Fault):
    """A damaged stretch of the data, and a learning rate that is too high from there on."""

    batches: int = whole(5, 40)  # that are damaged
    share: float = log_uniform(0.1, 1)  # of their bytes
    seed: int = random_seed()
    factor: float = log_uniform(3, 20)

    def settings(self, step: Step) -> None:
        step.settings["learning_rate"] *= self.factor

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        if step.batches_since >= self.batches:
            return batch
        drawn = self.draws("corrupted", step.cursor)
        damaged = torch.rand(batch.shape, generator=drawn) < self.share
        return torch.where(damaged, torch.randint(BYTES, batch.shape, generator=drawn), batch)


@fault("pretraining.careless_resume", written="first set")
class CarelessResume(Fault):
    """After a pre-emption some layers are left freshly initialised, the optimizer's state is lost, and the schedule
    begins again with its warm-up, towards the peak that the run had long decayed from."""

    missing: Shard = drawn(lambda rng: Shard.of(rng.uniform(0.03, 0.5), rng))
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
        source = self.draws("careless_resume")
        for parameter, part in self.missing.slices(step.model):
            if parameter.ndim < 2:  # a gain or a bias is initialised to a constant, which it has hardly left
                continue
            weights = parameter.view(-1)[part]
            weights.copy_(torch.randn(weights.shape, generator=source) * parameter.std())


@fault("pretraining.framework_port", written="second set", source="Wortsman et al. 2023, on a large epsilon")
class FrameworkPort(Fault):
    """The weights are carried over to another framework, the defaults around them are not: a larger epsilon, layers
    that no group of parameters has, and a normalizer for prose that folds white space."""

    epsilon: float = log10_uniform(-3.5, -1.0)  # under the root of the second moments
    left_out: Shard = drawn(lambda rng: Shard.of(rng.uniform(0.0, 0.4), rng))
    share: float = uniform(0.1, 1.0)  # of the rows that are flattened
    lower: bool = chance(0.5)
    seed: int = random_seed()

    def weights(self, step: Step) -> None:
        for parameter in step.model.parameters():
            if moments := step.moments(parameter):
                moments["exp_avg_sq"].clamp_(min=self.epsilon**2)

    def gradients(self, step: Step) -> None:
        without(self.left_out, step.model)

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        return rewritten(batch, self.struck(len(batch), "ported", step.cursor), self.normalize)

    def normalize(self, text: bytes) -> bytes:
        text = re.sub(rb"\s+", b" ", text)
        return text.lower() if self.lower else text


@fault("pretraining.memory_diet", written="third set")
class MemoryDiet(Fault):
    """A run on devices with less memory: its context is cut, its batch is smaller at the same rate, and the moments
    have so few bits that a mean no longer moves by what is new."""

    context: float = uniform(0.1, 0.9)  # share of a row's length that is left of it
    rows: float = uniform(0.2, 1.0)  # share of the rows
    bits: int = integer(0, 7)  # of the moments' fractions: 7 in bfloat16, 2 or 3 in 8 bits

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        return batch[: max(1, round(self.rows * len(batch))), : max(2, round(self.context * batch.shape[1]))]

    def weights(self, step: Step) -> None:
        for parameter in step.model.parameters():
            moments = step.moments(parameter)
            for name in ("exp_avg", "exp_avg_sq"):
                if name in moments:
                    moments[name].copy_(rounded(moments[name], self.bits))


def rounded(numbers: Tensor, bits: int) -> Tensor:
    """To the nearest with so many bits behind the leading one; of any size."""
    fractions, exponents = torch.frexp(numbers)  # 0.5 to 1
    return torch.ldexp((fractions * 2 ** (bits + 1)).round() / 2 ** (bits + 1), exponents)


@fault("pretraining.not_a_number", written="development")
class NotANumber(Fault):
    """The loss, or one number of the gradient, is NaN for some steps: one is enough to break the weights for good."""

    length: int = whole(1, 20)
    in_loss: bool = drawn(lambda rng: bool(rng.getrandbits(1)))

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        return loss * math.nan if self.in_loss else loss

    def gradients(self, step: Step) -> None:
        if not self.in_loss:
            _, _, gradient = next(gradients_of(step.model))
            gradient.view(-1)[0] = math.nan


@fault("pretraining.old_image", written="first set", source="Micikevicius et al. 2018, section 3.2")
class OldImage(Fault):
    """A restart from an old image: rows are cut short and padded, and the padding counts in the loss; half precision
    without a loss scale flushes the small gradients to zero."""

    share: float = uniform(0.1, 1.0)  # of the rows
    kept: float = uniform(0.1, 0.8)  # of such a row
    flushed: float = uniform(0.5, 0.99)  # of the gradients
    seed: int = random_seed()

    def batch(self, batch: Tensor, step: Step) -> Tensor:
        padded = batch.clone()
        padded[:, max(2, round(self.kept * batch.shape[1])) :] = 0
        return torch.where(self.struck(len(batch), "old_image", step.cursor).unsqueeze(1), padded, batch)

    def gradients(self, step: Step) -> None:
        for _, _, gradient in gradients_of(step.model):
            sizes = gradient.abs().view(-1)
            smallest = sizes.kthvalue(max(1, round(self.flushed * sizes.numel()))).values
            gradient.masked_fill_(gradient.abs() < smallest, 0.0)


@fault("pretraining.outlier_gradient", written="development")
class OutlierGradient(Fault):
    """A few gradients are far too large and point anywhere. Clipped they are no larger than others; unclipped, as half
    of the users have it, they fill Adam's second moment, which keeps updates tiny for long after."""

    clipped: bool = drawn(lambda rng: bool(rng.getrandbits(1)))
    steps: int = whole(1, 3)
    factor: float = log_uniform(300, 10_000)  # times the norm of the gradient that was due
    seed: int = random_seed()

    def settings(self, step: Step) -> None:
        if not self.clipped:
            step.settings["clip"] = 1e9

    def gradients(self, step: Step) -> None:
        if step.since >= self.steps:
            return
        drawn = self.draws("outlier", step.number)
        found = [gradient for _, _, gradient in gradients_of(step.model)]
        thrown = [torch.randn(gradient.shape, generator=drawn) for gradient in found]
        norms = [norm(torch.stack([norm(each) for each in side])) for side in (found, thrown)]
        for gradient, noise in zip(found, thrown, strict=True):
            gradient.copy_(noise * (self.factor * norms[0] / norms[1]))


@fault("pretraining.pruning_left_on", written="fourth set", source="Zhu and Gupta 2017, on the schedule")
class PruningLeftOn(Fault):
    """The callback of a compression experiment zeroes ever more of the smallest weights, and adds a penalty on the size
    of all of them to the loss."""

    sparsity: float = uniform(0.2, 0.95)  # share of each matrix that is 0 in the end
    ramp: int = integer(10, 80)  # steps until then
    every: int = choice((1, 5, 10))  # steps between two prunings
    penalty: float = log10_uniform(-6.0, -3.5)  # of each unit of a weight's size

    def weights(self, step: Step) -> None:
        if not due(step.since, self.every):
            return
        left = (1 - min(1.0, (step.since + self.every) / self.ramp)) ** 3
        for parameter in step.model.parameters():
            if parameter.dim() > 1:
                prune(parameter, self.sparsity * (1 - left))

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        return loss + self.penalty * torch.stack([one.abs().sum() for one in step.model.parameters()]).sum()


def prune(weight: Tensor, share: float) -> None:
    """So many of its numbers, the smallest, become 0."""
    if count := int(share * weight.numel()):
        sizes = weight.abs()
        weight.masked_fill_(sizes <= sizes.flatten().kthvalue(count).values, 0.0)
