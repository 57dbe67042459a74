"""Weights that are damaged, rounded, or written in another form in the middle of a run."""

from __future__ import annotations

from functools import cache
from random import Random
from typing import cast

import torch
from torch import Tensor

from oven_bench.gym.fault import Fault, Step, due, fault
from oven_bench.gym.seeded_draws import (
    chance,
    choice,
    count,
    drawn,
    generator,
    integer,
    log10_uniform,
    log_uniform,
    random_seed,
    uniform,
)
from oven_bench.gym.tasks.pretraining.byte_model import BYTES, WIDTH, Block, ByteModel
from oven_bench.gym.tasks.pretraining.corpus import pool

INWARD = ("mix", "down")
"""Of the block's matrices those that write into the residual stream; all others read from it or are looked up."""


@fault("pretraining.coarse_weights", written="first set", source="Zamirai et al. 2020, arXiv 2010.06192")
class CoarseWeights(Fault):
    """After each step the weights are rounded to the nearest of few values, without a master copy: what an update adds
    below half a unit in the last place is lost, and most weights stand still."""

    bits: float = uniform(2.5, 6.5)

    def weights(self, step: Step) -> None:
        for parameter in step.model.parameters():
            significand, exponent = torch.frexp(parameter)
            levels = 2.0**self.bits
            parameter.copy_(torch.ldexp((significand * levels).round() / levels, exponent))


def _some_rank(rng: Random) -> slice:
    """Of the vocabulary: source code is in the lower half of the bytes."""
    ranks = rng.choice((2, 4, 8))
    first = BYTES // ranks * rng.randrange(ranks // 2)
    return slice(first, first + BYTES // ranks)


@fault("pretraining.exploding_rows", written="first set", source="Megatron-LM, arXiv 1909.08053, section 3, on shards")
class ExplodingRows(Fault):
    """One rank's rows of embedding and head grow by the same factor at each step. All other weights are sound, and the
    norm of all hardly shows it at first."""

    rows: slice = drawn(_some_rank)
    length: int = integer(15, 90)
    factor: float = uniform(1.01, 1.12)

    def weights(self, step: Step) -> None:
        for parameter in step.model.parameters():
            if parameter.ndim == 2 and parameter.shape[0] == BYTES:
                parameter[self.rows].mul_(self.factor)


@fault("pretraining.folded_scales", written="fifth set", healthy=True, source="Xiao et al. 2023 (SmoothQuant)")
class FoldedScales(Fault):
    """A scale is moved from one matrix into the one before, with the moments: the network computes the same, the norm
    of the weights jumps and the update seems smaller."""

    length: int = 1
    scale: float = drawn(lambda rng: rng.choice((0.4, 0.5, 1.5, 2.0, 2.5, 3.0)) * rng.uniform(0.9, 1.1))

    def weights(self, step: Step) -> None:
        parameters = dict(step.model.named_parameters())
        for name, scale in (("block.up.weight", self.scale), ("block.down.weight", 1 / self.scale)):
            parameters[name].mul_(scale)
            moments = step.moments(parameters[name])
            moments["exp_avg"].div_(scale)
            moments["exp_avg_sq"].div_(scale**2)


@fault("pretraining.rotated_basis", written="set A", healthy=True, source="Ashkboos et al. 2024 (QuaRot)")
class RotatedBasis(Fault):
    """The hidden state's basis is turned in all matrices, and the moments, or the second ones, are left in the old one:
    for some steps the gradient has nothing to do with the momentum."""

    length: int = 1
    angle: float = log10_uniform(-0.7, 0.5)
    momentum: bool = chance(0.3)  # is turned, too
    seed: int = random_seed()

    def weights(self, step: Step) -> None:
        turn = rotation(self.angle, self.seed)
        for name, weight in step.model.named_parameters():
            for one in (weight, step.moments(weight)["exp_avg"])[: 1 + self.momentum]:
                one.copy_(turned(name, one, turn))


@cache
def rotation(angle: float, seed: int) -> Tensor:  # float32 [WIDTH, WIDTH]
    """Leaves the mean of what it turns as it is, so that a normalisation before or after it is the same. Not to be
    written to."""
    drawn = torch.randn(WIDTH, WIDTH, generator=generator("rotation", seed), dtype=torch.float64) * WIDTH**-0.5
    centred = torch.eye(WIDTH, dtype=torch.float64) - 1 / WIDTH
    turn: Tensor = torch.matrix_exp(angle * (centred @ (drawn - drawn.T) @ centred))
    return turn.float()


def turned(name: str, weight: Tensor, basis: Tensor) -> Tensor:
    """A matrix of this name, with the residual stream turned by an orthogonal [WIDTH, WIDTH]."""
    return basis.T @ weight if name.split(".")[-2] in INWARD else weight @ basis


@fault("pretraining.turned_basis", written="eighth set", healthy=True, source="Ashkboos et al. 2024 (QuaRot)")
class TurnedBasis(Fault):
    """The residual stream is turned by a random rotation, sometimes with Adam's first moment. The model computes the
    same; for some steps the gradient has nothing to do with the moments."""

    length: int = 1
    momentum: bool = chance(0.7)  # is turned, too
    seed: int = random_seed()

    def weights(self, step: Step) -> None:
        turn = basis(self.seed)
        for name, weight in step.model.named_parameters():
            for one in (weight, step.moments(weight)["exp_avg"])[: 1 + self.momentum]:
                one.copy_(turned(name, one, turn))


def basis(seed: int) -> Tensor:
    """Float32 [WIDTH, WIDTH]: a random rotation that leaves the vector of ones where it is, and so every mean."""
    drawn = torch.randn(WIDTH, WIDTH, generator=generator("basis", seed), dtype=torch.float64)
    drawn[:, 0] = 1.0
    frame = torch.linalg.qr(drawn)[0]
    inner = torch.eye(WIDTH, dtype=torch.float64)
    other = torch.randn(WIDTH - 1, WIDTH - 1, generator=generator("turn", seed), dtype=torch.float64)
    inner[1:, 1:] = torch.linalg.qr(other)[0]
    turn: Tensor = frame @ inner @ frame.T
    return turn.float()


@fault("pretraining.saturated_weights", written="seventh set")
class SaturatedWeights(Fault):
    """Weights in eight bits with a scale that was measured at the start: what has grown beyond it is cut off after each
    step, so that the most useful weights are held back."""

    length: int = count(10, 1.3)
    largest: float = log10_uniform(-2.1, -0.9)  # number that the format has room for
    parts: tuple[str, ...] = choice((("",), ("out.",), ("out.", "bytes.")))  # by the start of the name

    def weights(self, step: Step) -> None:
        for name, parameter in step.model.named_parameters():
            if name.startswith(self.parts):
                parameter.clamp_(-self.largest, self.largest)


@fault("pretraining.square_matrix", written="set D")
class SquareMatrix(Fault):
    """A conversion of checkpoints does not transpose what is square, and each restart goes through it once more. The
    loss jumps and falls as the layers learn their work anew."""

    times: int = choice((1, 1, 2, 3, 5))  # restarts
    every: int = choice((8, 12, 20))  # steps between two of them
    matrices: tuple[str, ...] = choice((("mix",), ("mix",), ("q", "k"), ("v", "mix"), ("q", "k", "v", "mix")))
    moments: bool = chance(0.5)  # are converted along

    def weights(self, step: Step) -> None:
        if not due(step.since, self.every, self.times):
            return
        block = cast(ByteModel, step.model).block
        qkv, mix = block.qkv.weight, block.mix.weight
        held: list[tuple[Tensor, Tensor]] = [(qkv.data, mix.data)]
        if self.moments:
            held += [(step.moments(qkv)[one], step.moments(mix)[one]) for one in ("exp_avg", "exp_avg_sq")]
        for numbers in held:
            for name, part in squares(*numbers).items():
                if name in self.matrices:
                    part.copy_(part.T.clone())


def squares(qkv: Tensor, mix: Tensor) -> dict[str, Tensor]:
    """Views of the matrices that are as wide as high."""
    return {**dict(zip("qkv", torch.split(qkv, WIDTH), strict=True)), "mix": mix}


@fault("pretraining.weight_noise", written="development")
class WeightNoise(Fault):
    """The weights are disturbed once: a bad load, a bit error, a wrong average."""

    length: int = 1
    deviation: float = log_uniform(0.1, 3)  # of the noise, over the root mean square of each matrix
    seed: int = random_seed()

    def weights(self, step: Step) -> None:
        drawn = self.draws("noise")
        for parameter in step.model.parameters():
            size = parameter.square().mean().sqrt()
            parameter.add_(torch.randn(parameter.shape, generator=drawn) * (self.deviation * size))


@fault("pretraining.cleared_symbols", written="seventh set", healthy=True)
class ClearedSymbols(Fault):
    """The rows of unused symbols are cleared, in the embedding and in the output layer. The norm of the weights falls,
    and the loss jumps, for what never occurs is as likely as much else; that is learnt again in a few steps."""

    length: int = 1
    rows: int = choice((256, 512, 1024, 2048))  # of the sample in which symbols are looked for
    most: int = choice((0, 0, 1, 2))  # how often a symbol may occur there

    def weights(self, step: Step) -> None:
        gone = unused(self.rows, self.most)
        for name, parameter in step.model.named_parameters():
            if name in ("bytes.weight", "out.weight"):
                parameter[gone] = 0.0


def unused(rows: int, most: int) -> Tensor:
    """Bool [BYTES]: those that a sample of the corpus has so often or less."""
    return torch.bincount(pool(rows, 0).flatten(), minlength=BYTES) <= most


@fault("pretraining.recycled_units", written="set B")
class RecycledUnits(Fault):
    """Hidden units are begun anew every so often, and the ranking is the wrong way round: it is the busiest. The loss
    jumps each time and is soon repaired by the units that are left."""

    length: int = count(30, 0.9)
    every: int = choice((2, 5, 10))  # steps
    units: int = count(24, 0.9)  # at a time
    seed: int = random_seed()

    def weights(self, step: Step) -> None:
        if not due(step.since, self.every):
            return
        block = cast(ByteModel, step.model).block
        units, up, down = busiest(block, self.units), block.up.weight, block.down.weight
        draws = self.draws("recycled", step.number)
        up[units] = torch.randn(len(units), up.shape[1], generator=draws) * up.shape[1] ** -0.5
        down[:, units] = torch.randn(down.shape[0], len(units), generator=draws) * down.shape[1] ** -0.5
        for moment in ("exp_avg", "exp_avg_sq"):
            step.moments(up)[moment][units] = 0.0
            step.moments(down)[moment][:, units] = 0.0


def busiest(block: Block, count: int) -> Tensor:
    """Int64 [count]: the hidden units with the largest weights in and out."""
    size: Tensor = block.up.weight.norm(dim=1) * block.down.weight.norm(dim=0)
    return size.topk(count).indices


@fault("pretraining.revived_units", written="set A", source="Sokar et al. 2023 (ReDo)")
class RevivedUnits(Fault):
    """Units that are at work are taken for dead: every so often a share of each layer's is drawn anew, the last layer
    included, and its moments are cleared."""

    every: int = choice((2, 4, 8, 16))  # steps
    rounds: int = count(1, 1.3)
    share: float = log10_uniform(-1.3, 0.0)  # of the units of each layer
    seed: int = random_seed()

    def weights(self, step: Step) -> None:
        if not due(step.since, self.every, self.rounds):
            return
        for name, weight in step.model.named_parameters():
            if name.startswith(("block.", "out.")):
                units = self.struck(len(weight), "dead", step.since, name)
                drawn = torch.randn(weight.shape, generator=self.draws("revived", step.since, name))
                weight[units] = drawn[units] * weight.shape[1] ** -0.5
                for moment in ("exp_avg", "exp_avg_sq"):
                    step.moments(weight)[moment][units] = 0.0
