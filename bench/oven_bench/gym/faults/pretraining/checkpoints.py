"""Checkpoints that come back wrong: parts that are lost, moved, tied, averaged, or of another model."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import Tensor

from oven_bench.gym.fault import Fault, Step, due, fault
from oven_bench.gym.faults.pretraining.weights import turned
from oven_bench.gym.faults.shards import Shard
from oven_bench.gym.seeded_draws import (
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
from oven_bench.gym.tasks.pretraining.byte_model import ByteModel
from oven_bench.gym.tasks.pretraining.corpus import LENGTH


@fault("pretraining.context_extension", written="fifth set", source="Peng et al. 2023 (YaRN)")
class ContextExtension(Fault):
    """Compound: a checkpoint is prepared for a longer context that does not come. The table of positions is
    interpolated and the attention sharpened, and the moments are those of the old weights."""

    length: int = 1
    stretch: float = drawn(lambda rng: 2 ** rng.uniform(0.3, 5.0))  # times as long as the context can be
    sharper: float = drawn(lambda rng: 2 ** rng.uniform(0.0, 4.0))  # what the queries are multiplied by

    def weights(self, step: Step) -> None:
        parameters = dict(step.model.named_parameters())
        positions, qkv = parameters["positions.weight"], parameters["block.qkv.weight"]
        positions.copy_(stretched(positions, self.stretch))
        qkv[: len(qkv) // 3].mul_(self.sharper)


def stretched(table: Tensor, times: float) -> Tensor:
    """[places, width]: as many places as there were, each of which is found by interpolation where it is now."""
    at = torch.arange(len(table)) / times
    below = at.long()
    above = (below + 1).clamp(max=len(table) - 1)
    return torch.lerp(table[below], table[above], (at - below).unsqueeze(1))


@fault("pretraining.lagging_average", written="fourth set")
class LaggingAverage(Fault):
    """A restart loads the exponential average for the weights, a good part of which is still what the run began from.
    The moments are those of the weights."""

    length: int = 1
    share: float = uniform(0.3, 1.0)  # of the first weights in the average

    def weights(self, step: Step) -> None:
        for weight, first in zip(step.model.parameters(), first_weights(step.seed), strict=True):
            weight.lerp_(first, self.share)


def first_weights(seed: int) -> list[Tensor]:
    """What a run of the seed began from."""
    with torch.random.fork_rng(devices=[]):
        return [weight.detach() for weight in ByteModel(LENGTH, generator("weights", seed)).parameters()]


@fault("pretraining.moments_shrunk", written="development")
class MomentsShrunk(Fault):
    """Adam's second moment is shrunk once, as after a resume that lost it. Bias correction is that of a run of this
    age, so that updates are far too large until the mean over 1/(1 − β₂) steps has filled up again."""

    length: int = 1
    factor: float = log_uniform(1e-2, 1e-8)

    def weights(self, step: Step) -> None:
        for parameter in step.model.parameters():
            step.moments(parameter)["exp_avg_sq"].mul_(self.factor)


@fault("pretraining.optimizer_recreated", written="first set")
class OptimizerRecreated(Fault):
    """A callback rebuilds the optimizer every few steps, and Adam forgets all but the count of steps. The first update
    after that is the sign of the gradient for every weight."""

    every: int = drawn(lambda rng: round(16 ** rng.random()))

    LEFT = 1e-6  # of a momentum: no weight in the next, but a direction, so that no measure of it is 0 / 0

    def weights(self, step: Step) -> None:
        if not due(step.since, self.every):
            return
        for parameter in step.model.parameters():
            if moments := step.moments(parameter):
                moments["exp_avg"].mul_(self.LEFT)
                moments["exp_avg_sq"].zero_()


@fault("pretraining.outer_step", written="set B")
class OuterStep(Fault):
    """Sites exchange their progress every so many steps, and an outer optimizer with too much momentum throws the
    weights beyond where the inner steps led. The loss jumps at each exchange."""

    every: int = choice((5, 10, 20, 30))  # steps between two exchanges
    reach: float = log10_uniform(-0.4, 0.35)  # how far each goes on, in units of the steps since the last

    BETAS, FLOOR = (0.9, 0.95), 1e-8  # of the inner optimizer

    def weights(self, step: Step) -> None:
        if not due(step.since, self.every):
            return
        length = step.learning_rate * self.every * self.reach
        for parameter in step.model.parameters():
            moments = step.moments(parameter)
            done = float(moments["step"])
            if done > 0:
                first = moments["exp_avg"] / (1 - self.BETAS[0] ** done)
                second = moments["exp_avg_sq"] / (1 - self.BETAS[1] ** done)
                parameter.sub_(length * first / (second.sqrt() + self.FLOOR))


NEVER = (0xC0, 0xC1, *range(0xF5, 0x100))
"""Bytes that UTF-8 does not use."""


@fault("pretraining.padded_vocabulary", written="third set", healthy=True)
class PaddedVocabulary(Fault):
    """The embedding is padded to a round number of rows, which hold what the memory held before: the norm of the
    weights jumps, updates are small beside it, and no token looks these rows up."""

    length: int = 1
    rows: int = integer(3, len(NEVER))
    size: float = log10_uniform(0.5, 1.5)  # of a number in them, times the root mean square of the others
    seed: int = random_seed()

    def weights(self, step: Step) -> None:
        embedding = next(step.model.parameters())
        left = torch.randn(self.rows, *embedding.shape[1:], generator=self.draws("padded"))
        embedding[list(NEVER[: self.rows])] = left * self.size * embedding.square().mean().sqrt()


@fault("pretraining.resharded_moments", written="sixth set")
class ReshardedMoments(Fault):
    """A job comes up on another number of devices, and the reader of the moments takes padding for numbers: in some
    shards each moment is that of a weight further down. The weights are right."""

    every: int = choice((3, 6, 12))  # steps between two restarts
    times: int = choice((1, 2, 4, 8, 12))
    start: float = uniform(0.0, 1.0)  # where the first wrong shard begins
    share: float = log10_uniform(-0.5, 0.0)  # of the flat moments that lie in wrong shards
    offset: int = count(1, 4.0)  # numbers by which these are off

    def weights(self, step: Step) -> None:
        if not due(step.since, self.every, self.times):
            return
        states = [step.moments(parameter) for parameter in step.model.parameters()]
        for moment in ("exp_avg", "exp_avg_sq"):
            tensors = [state[moment] for state in states]
            moved = shifted(torch.cat([one.flatten() for one in tensors]), self.start, self.share, self.offset)
            for one, part in zip(tensors, torch.split(moved, [one.numel() for one in tensors]), strict=True):
                one.copy_(part.view_as(one))


def shifted(flat: Tensor, start: float, share: float, offset: int) -> Tensor:
    """[N]: a stretch of it goes round by `offset` numbers; the rest is as it was."""
    first = int(start * (1 - share) * len(flat))
    last = first + max(1, int(share * len(flat)))
    return torch.cat((flat[:first], flat[first:last].roll(offset), flat[last:]))


@fault("pretraining.second_moments_lost", written="first set")
class SecondMomentsLost(Fault):
    """A shard's second moments are zero after a restart, while its first ones and the count of steps are there: for
    some steps the shard moves many times further than the rate says."""

    length: int = 1
    shard: Shard = drawn(lambda rng: Shard.of(0.05 * 20 ** rng.random(), rng))

    def weights(self, step: Step) -> None:
        for parameter, part in self.shard.slices(step.model):
            if (squares := step.moments(parameter).get("exp_avg_sq")) is not None:
                squares.view(-1)[part].zero_()


@fault("pretraining.tied_on_load", written="sixth set")
class TiedOnLoad(Fault):
    """A new version of the library copies the embedding over the output layer whenever the job comes up. The output
    layer is learnt anew, with the moments of the old one."""

    every: int = choice((8, 15, 25, 40))  # steps between two restarts
    times: int = choice((1, 1, 1, 2, 3, 5))
    share: float = choice((0.25, 0.5, 1.0, 1.0))  # of the vocabulary's shards
    seed: int = random_seed()

    SHARDS = 8

    def weights(self, step: Step) -> None:
        if not due(step.since, self.every, self.times):
            return
        parameters = dict(step.model.named_parameters())
        said, out = parameters["bytes.weight"], parameters["out.weight"]
        rows = self.struck(self.SHARDS, "tied").repeat_interleave(len(out) // self.SHARDS)
        out[rows] = said[rows]


@fault("pretraining.unloaded_layers", written="third set")
class UnloadedLayers(Fault):
    """Some tensors, or a shard of them, are missing from the checkpoint and are left freshly initialised. The
    optimizer goes by position, so that its moments are there."""

    length: int = 1
    shards: float = choice((0.125, 0.25, 0.5, 1.0))  # share of each tensor's rows
    first: float = uniform(0.0, 1.0)  # where the missing tensors begin, as a share of all
    share: float = uniform(0.05, 0.7)  # of the tensors; at least one
    seed: int = random_seed()

    STD = 0.02  # of fresh weights, as most libraries have it

    def weights(self, step: Step) -> None:
        parameters = list(step.model.parameters())
        first = int(self.first * len(parameters))
        for index in range(first, first + max(1, round(self.share * len(parameters)))):
            missing = parameters[index % len(parameters)]
            fresh = torch.randn(missing.shape, generator=self.draws("unloaded", index)) * self.STD
            rows = max(1, round(self.shards * len(missing)))
            missing[:rows] = fresh[:rows] if missing.dim() > 1 else 0.0


@fault("pretraining.souped_weights", written="eighth set")
class SoupedWeights(Fault):
    """The mean with a model of another seed, whose units are in another order: the loss is back where it was long ago,
    and the moments are those of one of the two."""

    share: float = uniform(0.2, 0.5)  # of the other model in the mean
    times: int = choice((1, 2, 3, 5, 8))
    every: int = choice((5, 10, 20))  # steps between two of them
    seed: int = random_seed()

    def weights(self, step: Step) -> None:
        if not due(step.since, self.every, self.times):
            return
        own = dict(step.model.named_parameters())
        for name, its in shuffled(own, self.draws("soup", step.since)).items():
            own[name].lerp_(its, self.share)


def shuffled(weights: Mapping[str, Tensor], draws: torch.Generator) -> dict[str, Tensor]:
    """The same model by name, with the residual stream's places and the hidden units in another order."""
    width, hidden = weights["block.down.weight"].shape
    places = torch.eye(width)[torch.randperm(width, generator=draws)]
    made = {name: turned(name, weight, places) for name, weight in weights.items()}
    order = torch.randperm(hidden, generator=draws)
    made["block.up.weight"] = made["block.up.weight"][order]
    made["block.down.weight"] = made["block.down.weight"][:, order]
    return made
