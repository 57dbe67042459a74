"""Gradients that are lost, late, mixed up, noisy, or of another size on their way from the loss to the optimizer."""

from __future__ import annotations

from collections.abc import Iterator
from random import Random

import torch
from torch import Tensor, nn

from oven_bench.gym.fault import Fault, Step, fault
from oven_bench.gym.faults.shards import Shard
from oven_bench.gym.seeded_draws import (
    chance,
    choice,
    count,
    drawn,
    integer,
    log10_uniform,
    random_seed,
    uniform,
)


def gradients_of(model: nn.Module) -> Iterator[tuple[str, nn.Parameter, Tensor]]:
    """Each parameter that has one: name, parameter, gradient."""
    for name, parameter in model.named_parameters():
        if parameter.grad is not None:
            yield name, parameter, parameter.grad


PARTS = (
    ("positions.",),
    ("block.qkv.", "block.mix."),
    ("bytes.", "positions."),
    ("block.up.", "block.down."),
    ("out.",),
    ("block.",),
    ("bytes.", "positions.", "block."),
)
"""What a script for adapters, for probes or for a new vocabulary leaves frozen, by the start of the name."""


@fault("pretraining.frozen_layers", written="sixth set")
class FrozenLayers(Fault):
    """Some layers are still frozen by a hook on their gradients. The optimizer knows nothing of it: a frozen weight
    coasts on its momentum for a while, and then is left to the weight decay."""

    length: int = count(30, 1.0)
    parts: tuple[str, ...] = choice(PARTS)

    def gradients(self, step: Step) -> None:
        for name, _, gradient in gradients_of(step.model):
            if name.startswith(self.parts):
                gradient.zero_()


def _spacing(rng: Random) -> float:
    made: float = 2.0 ** rng.uniform(-12.0, -3.0)
    return made


@fault("pretraining.gradient_underflow", written="third set", source="Micikevicius et al. 2018 (mixed precision)")
class GradientUnderflow(Fault):
    """Gradients in few bits without the scale that lifts them into their range: the small ones vanish, rare bytes and
    late layers learn no more, and the norm hardly changes."""

    spacing: float = drawn(_spacing)  # between the smallest numbers that there are
    flush: bool = chance(0.5)  # what lies below the first of them is 0; else it is rounded

    def gradients(self, step: Step) -> None:
        for _, _, gradient in gradients_of(step.model):
            if self.flush:
                gradient.masked_fill_(gradient.abs() < self.spacing, 0.0)
            else:
                gradient.div_(self.spacing).round_().mul_(self.spacing)


@fault("pretraining.lost_collectives", written="sixth set", healthy=True)
class LostCollectives(Fault):
    """In some steps the sum over the nodes times out, and the norm falls to nearly nothing. Adam makes that step on its
    momentum, and nothing is lost but the data of a few steps."""

    length: int = integer(3, 25)
    share: float = uniform(0.1, 0.3)  # of the steps
    left: float = log10_uniform(-4.0, -0.5)  # of a gradient that came too late
    seed: int = random_seed()

    def gradients(self, step: Step) -> None:
        if self.struck(1, "lost", step.number):
            for _, _, gradient in gradients_of(step.model):
                gradient.mul_(self.left)


@fault("pretraining.low_rank_gradients", written="fifth set", source="Vogels et al. 2019 (PowerSGD)")
class LowRankGradients(Fault):
    """Gradients are sent as products of two thin matrices, and what that leaves out is not remembered for the next
    step: what is not in the few main directions is never learnt."""

    rank: int = choice((1, 1, 2, 2, 4, 8))
    nodes: float = choice((0.5, 0.75, 1.0, 1.0))  # share of the gradient that comes from other nodes
    seed: int = random_seed()

    def gradients(self, step: Step) -> None:
        draws = self.draws("rank", step.number)
        for _, parameter, gradient in gradients_of(step.model):
            if parameter.dim() == 2:
                gradient.lerp_(low_rank(gradient, self.rank, draws), self.nodes)


def low_rank(matrix: Tensor, rank: int, draws: torch.Generator) -> Tensor:
    """One power iteration from a random start."""
    start = torch.randn(matrix.shape[1], rank, generator=draws)
    basis = torch.linalg.qr(matrix @ start).Q
    squeezed: Tensor = basis @ (basis.T @ matrix)
    return squeezed


@fault("pretraining.misaligned_bucket", written="set A")
class MisalignedBucket(Fault):
    """In one flat bucket of gradients padding is counted when it is filled and not when it is read: each number is the
    gradient of a weight some places away. The norm is what it was."""

    begin: float = uniform(0.0, 0.7)  # of all numbers, laid out one after another
    length: int = count(10, 1.2)
    size: float = uniform(0.1, 0.6)
    padding: int = choice((1, 8, 16, 64))  # numbers by which what is read lies off

    @property
    def end(self) -> float:
        return min(1.0, self.begin + self.size)

    def gradients(self, step: Step) -> None:
        given = [gradient for _, _, gradient in gradients_of(step.model)]
        flat = torch.cat([one.flatten() for one in given])
        bucket = slice(int(self.begin * len(flat)), int(self.end * len(flat)))
        flat[bucket] = flat[bucket].roll(self.padding)
        for one, its in zip(given, torch.split(flat, [one.numel() for one in given]), strict=True):
            one.copy_(its.view_as(one))


@fault("pretraining.private_gradients", written="set C", source="Abadi et al. 2016 (DP-SGD)")
class PrivateGradients(Fault):
    """Gradients are clipped and given noise for privacy, measured out for much larger batches. It goes to every weight
    alike, Adam takes it there at the full rate, and the norm is suddenly very even."""

    length: int = count(20, 1.0)
    bound: float = log10_uniform(-1.0, 0.3)  # of the gradient's norm before the noise is added
    noise: float = log10_uniform(-0.5, 1.3)  # its norm over the bound
    seed: int = random_seed()

    def gradients(self, step: Step) -> None:
        held = [gradient for _, _, gradient in gradients_of(step.model)]
        norm = float(torch.stack([one.norm() for one in held]).norm())
        scale = self.noise * self.bound / sum(one.numel() for one in held) ** 0.5
        draws = self.draws("private", step.seed, step.number)
        for one in held:
            one.mul_(min(1.0, self.bound / (norm + 1e-6)))
            one.add_(torch.randn(one.shape, generator=draws), alpha=scale)


@fault(
    "pretraining.silent_corruption",
    written="first set",
    source="Dixit et al. 2021, arXiv 2102.11245; Hochschild et al. 2021, HotOS; Llama 3, arXiv 2407.21783, table 5",
)
class SilentCorruption(Fault):
    """The gradient of one rank's shard has its sign flipped at some steps, until the node is taken out. The norm is
    what it was, so that neither clipping nor a look at the norm finds it."""

    shard: Shard = drawn(lambda rng: Shard.of(rng.uniform(0.1, 0.5), rng))
    length: int = integer(20, 100)
    share: float = uniform(0.3, 1.0)  # of the steps
    seed: int = random_seed()

    def gradients(self, step: Step) -> None:
        if float(torch.rand((), generator=self.draws("silent_corruption", step.number))) >= self.share:
            return
        for parameter, part in self.shard.slices(step.model):
            if parameter.grad is not None:
                parameter.grad.view(-1)[part].neg_()


@fault("pretraining.stale_gradients", written="first set", source="Chen et al. 2016, arXiv 1604.00981, section 2.1")
class StaleGradients(Fault):
    """A share of the workers lags, and adds the mean of past gradients. The gradient agrees with the momentum and its
    norm falls, second moments fall with it, and the steps grow and overshoot."""

    late: float = drawn(lambda rng: 1.0 - 0.5 * 0.02 ** rng.random())  # share of the gradient

    def gradients(self, step: Step) -> None:
        for _, parameter, gradient in gradients_of(step.model):
            if (past := step.moments(parameter).get("exp_avg")) is not None:
                gradient.lerp_(past, self.late)


@fault("pretraining.summed_gradients", written="second set", healthy=True)
class SummedGradients(Fault):
    """Gradients are summed over the workers where they were averaged: the norm is several times what it was, and
    clipping takes the size out again."""

    workers: int = choice((2, 4, 8, 16, 32, 64))

    def gradients(self, step: Step) -> None:
        for _, _, gradient in gradients_of(step.model):
            gradient.mul_(self.workers)


@fault("pretraining.uncleared_gradients", written="second set")
class UnclearedGradients(Fault):
    """Gradients are not set to zero between two steps. What is left over is in proportion to the first moment: with all
    of it kept, that moment becomes their plain sum."""

    kept: float = uniform(0.5, 1.0)

    def gradients(self, step: Step) -> None:
        for _, parameter, gradient in gradients_of(step.model):
            if moments := step.moments(parameter):
                gradient.add_(moments["exp_avg"], alpha=self.kept)


@fault("pretraining.unreduced_part", written="second set")
class UnreducedPart(Fault):
    """The gradients of a part of the weights do not arrive: it learns no more, and the others continue around it."""

    part: Shard = drawn(lambda rng: Shard.of(rng.uniform(0.15, 0.95), rng))

    def gradients(self, step: Step) -> None:
        without(self.part, step.model)


def without(part: Shard, model: nn.Module) -> None:
    """Sets these gradients to 0."""
    for parameter, elements in part.slices(model):
        if parameter.grad is not None:
            parameter.grad.view(-1)[elements] = 0.0


@fault("pretraining.coupled_decay", written="eighth set", source="Loshchilov and Hutter 2019, on the difference")
class CoupledDecay(Fault):
    """The weight decay goes through the gradient, and Adam divides it by its size: every weight with little gradient of
    its own is pulled to 0 at the full rate. What is rare is forgotten first."""

    strength: float = log10_uniform(-1.5, 0.7)  # in units of the decay that is set
    parts: tuple[str, ...] = choice((("",), ("",), ("bytes.", "positions."), ("block.", "out.")))

    def gradients(self, step: Step) -> None:
        decay = self.strength * step.weight_decay
        for name, parameter, gradient in gradients_of(step.model):
            if name.startswith(self.parts):
                gradient.add_(parameter, alpha=decay)
