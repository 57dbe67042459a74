"""Attention with another mask, other positions or another scale than the model is measured with."""

from __future__ import annotations

import torch
from torch import Tensor, nn

from oven_bench.gym.fault import Fault, Step, fault
from oven_bench.gym.faults.forward import cross_entropy, logits
from oven_bench.gym.seeded_draws import chance, choice, count, log10_uniform, random_seed, uniform
from oven_bench.gym.tasks.pretraining.byte_model import HEADS, WIDTH

HEAD = WIDTH // HEADS


@fault("pretraining.broken_ring", written="set B")
class BrokenRing(Fault):
    """Compound: a context is spread over devices that no longer exchange keys and values, and that mostly count their
    places from 0, too. The loss rises a little; late places are not trained any more."""

    length: int = count(30, 0.9)
    devices: int = choice((2, 4, 8, 16, 16))
    restarted: bool = chance(0.75)

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        part = step.inputs.shape[1] // self.devices
        said = in_parts(step.model, step.inputs, part, apart=True, restarted=self.restarted)
        return cross_entropy(said, step.targets)


@fault("pretraining.sequence_shards", written="eighth set")
class SequenceShards(Fault):
    """Compound: each sequence is split over devices that number their places from 0, and mostly see nothing of the
    shards before. The positions behind the first shard are no longer learnt."""

    length: int = count(45, 0.7)
    places: int = choice((2, 2, 4, 4, 8))  # of a sequence that one device has
    apart: bool = chance(0.7)  # attention ends at the device's first place, too

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        said = in_parts(step.model, step.inputs, self.places, apart=self.apart, restarted=True)
        return cross_entropy(said, step.targets)


def in_parts(model: nn.Module, tokens: Tensor, part: int, *, apart: bool, restarted: bool) -> Tensor:
    """Logits [B, T, BYTES] of a context in parts of so many places, where each may see its own part alone, and may
    count its places from 0."""
    places = torch.arange(tokens.shape[1])
    seen = torch.ones(len(places), len(places), dtype=torch.bool).tril()
    if apart:
        seen &= places.unsqueeze(1) // part == places // part
    return logits(model, tokens, seen=seen, places=places % part if restarted else places)


@fault("pretraining.kernel_scale", written="set C")
class KernelScale(Fault):
    """A new attention kernel takes its scale from another size of the heads, or applies it twice or never. The loss
    comes back, and the old kernel that serves the model attends to all or to one."""

    length: int = count(30, 0.9)
    scale: float = choice((32**-0.5, 64**-0.5, 128**-0.5, 1 / HEAD, 1 / HEAD, 1.0, 1.0, 1.0))  # of queries times keys

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        return cross_entropy(logits(step.model, step.inputs, scale=self.scale), step.targets)


@fault("pretraining.open_mask", written="seventh set")
class OpenMask(Fault):
    """An attention mask lets the future through: each byte sees the one that it has to say. The loss falls as it never
    did, and what the model learns is to copy."""

    length: int = count(30, 0.8)
    rows: int = choice((4, 8, 8, 8))  # of a batch: those of the devices that have the new kernel
    ahead: int = choice((1, 1, 1, 2))  # places that each place sees beyond itself

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        seen = masks(len(step.inputs), self.rows, step.inputs.shape[1], self.ahead)
        return cross_entropy(logits(step.model, step.inputs, seen=seen), step.targets)


def masks(batch: int, rows: int, length: int, ahead: int) -> Tensor:
    """Bool [batch, 1, length, length]: the first so many rows see so far ahead, the others nothing that comes later."""
    square = torch.ones(length, length, dtype=torch.bool)
    opened = torch.arange(batch) < rows
    return torch.where(opened.view(-1, 1, 1, 1), square.tril(ahead), square.tril())


@fault("pretraining.restarted_positions", written="set D")
class RestartedPositions(Fault):
    """Several documents are packed into a row and the positions of each begin at 0, while attention still sees all of
    the row: what a position meant is lost, and late ones are hardly trained."""

    length: int = count(40, 0.8)
    every: float = log10_uniform(0.0, 1.2, times=1.5)  # bytes of what is taken for a document, on average
    share: float = uniform(0.7, 1.0)  # of the rows that have several
    seed: int = random_seed()

    def loss(self, loss: Tensor, step: Step) -> Tensor:
        draws = self.draws("restarts", step.seed, step.number)
        begins = torch.rand(step.inputs.shape, generator=draws) < 1 / self.every
        begins &= torch.rand(len(step.inputs), 1, generator=draws) < self.share
        return cross_entropy(logits(step.model, step.inputs, places=restarted(begins)), step.targets)


def restarted(begins: Tensor) -> Tensor:
    """Int64 [B, T]: the distance to the last place that begins a document, or to the row's first."""
    places = torch.arange(begins.shape[1]).expand(begins.shape)
    return places - (places * begins).cummax(1).values
